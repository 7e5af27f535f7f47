import com.rabbitmq.client.AMQP;
import com.rabbitmq.client.Channel;
import com.rabbitmq.client.ConfirmListener;
import com.rabbitmq.client.Connection;
import com.rabbitmq.client.ConnectionFactory;
import com.rabbitmq.client.DefaultConsumer;
import com.rabbitmq.client.Envelope;
import com.rabbitmq.client.MessageProperties;
import java.util.ArrayList;
import java.util.List;
import java.util.Map;
import java.util.concurrent.ConcurrentNavigableMap;
import java.util.concurrent.ConcurrentSkipListMap;
import java.util.function.Consumer;

/** Loads RabbitMQ: four quorum queues, published to through one channel each, with publisher confirms. */
final class RabbitLoad extends Load {
    private static final int PREFETCH = 1_024;
    private static final int ACK_EVERY = 256;
    private static final int SETTLED_SENDS = 20;
    private static final long CONFIRM_TIMEOUT_MS = 5_000;
    private final int[] ports;
    private final List<Connection> connections = new ArrayList<>();
    private final Channel[] channels = new Channel[QUEUES];
    private final List<ConcurrentNavigableMap<Long, Done>> waiting = new ArrayList<>();

    RabbitLoad(int[] ports) {
        this.ports = ports;
    }

    private Connection connect(int number) throws Exception {
        ConnectionFactory factory = new ConnectionFactory();
        factory.setHost("127.0.0.1");
        factory.setPort(ports[number % ports.length]);
        factory.setRequestedHeartbeat(0);
        factory.setAutomaticRecoveryEnabled(false);
        Connection connection = factory.newConnection();
        connections.add(connection);
        return connection;
    }

    @Override
    void prepare() throws Exception {
        for (Connection connection : connections) connection.abort();
        connections.clear();
        waiting.clear();
        for (int queue = 0; queue < QUEUES; queue++) {
            Channel channel = connect(queue).createChannel();
            channel.queueDeclare("bench" + queue, true, false, false,
                    Map.of("x-queue-type", "quorum", "x-quorum-initial-group-size", 3));
            channel.confirmSelect();
            ConcurrentNavigableMap<Long, Done> pending = new ConcurrentSkipListMap<>();
            channel.addConfirmListener(new ConfirmListener() {
                @Override
                public void handleAck(long tag, boolean multiple) {
                    answer(pending, tag, multiple, null);
                }

                @Override
                public void handleNack(long tag, boolean multiple) {
                    answer(pending, tag, multiple, new IllegalStateException("not confirmed"));
                }
            });
            channels[queue] = channel;
            waiting.add(pending);
        }
        settle("");
    }

    private static void answer(ConcurrentNavigableMap<Long, Done> pending, long tag, boolean multiple, Throwable error) {
        if (!multiple) {
            Done done = pending.remove(tag);
            if (done != null) done.answered(error);
            return;
        }
        for (Map.Entry<Long, Done> each = pending.pollFirstEntry(); each != null; each = pending.pollFirstEntry()) {
            if (each.getKey() > tag) {
                pending.put(each.getKey(), each.getValue());
                return;
            }
            each.getValue().answered(error);
        }
    }

    @Override
    void settle(String flavour) throws Exception {
        for (int number = 0; number < SETTLED_SENDS; number++) {
            Channel channel = channels[number % QUEUES];
            channel.basicPublish("", "bench" + number % QUEUES, MessageProperties.PERSISTENT_BASIC, body(100));
            channel.waitForConfirmsOrDie(CONFIRM_TIMEOUT_MS);
        }
        for (int queue = 0; queue < QUEUES; queue++) channels[queue].queuePurge("bench" + queue);
    }

    @Override
    String missing(String kind) {
        return switch (kind) {
            case "batches" -> "AMQP 0-9-1 publishes no batches";
            case "transactions" -> "RabbitMQ has no half messages";
            default -> null;
        };
    }

    @Override
    boolean batches() {
        return false;
    }

    @Override
    void send(Request request, int queue, byte[][] bodies, Done done) throws Exception {
        Channel channel = channels[queue];
        waiting.get(queue).put(channel.getNextPublishSeqNo(), done);
        channel.basicPublish("", "bench" + queue, MessageProperties.PERSISTENT_BASIC, bodies[0]);
    }

    @Override
    AutoCloseable consume(Request request, Consumer<byte[]> taken) throws Exception {
        List<Connection> opened = new ArrayList<>();
        for (int queue = 0; queue < QUEUES; queue++) {
            Connection connection = connect(queue);
            opened.add(connection);
            Channel channel = connection.createChannel();
            channel.basicQos(PREFETCH);
            channel.basicConsume("bench" + queue, false, new DefaultConsumer(channel) {
                private long count;

                @Override
                public void handleDelivery(String tag, Envelope envelope, AMQP.BasicProperties properties, byte[] body)
                        throws java.io.IOException {
                    taken.accept(body);
                    if (++count % ACK_EVERY == 0) getChannel().basicAck(envelope.getDeliveryTag(), true);
                }
            });
        }
        return () -> {
            for (Connection connection : opened) connection.close();
            connections.removeAll(opened);
        };
    }

    public static void main(String[] arguments) throws Exception {
        int[] ports = new int[arguments.length];
        for (int n = 0; n < ports.length; n++) ports[n] = Integer.parseInt(arguments[n]);
        new RabbitLoad(ports).serve();
    }
}
