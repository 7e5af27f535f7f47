import java.util.ArrayList;
import java.util.Collection;
import java.util.List;
import java.util.concurrent.atomic.AtomicBoolean;
import java.util.function.Consumer;
import org.apache.rocketmq.client.consumer.DefaultLitePullConsumer;
import org.apache.rocketmq.client.producer.DefaultMQProducer;
import org.apache.rocketmq.client.producer.LocalTransactionState;
import org.apache.rocketmq.client.producer.SendCallback;
import org.apache.rocketmq.client.producer.SendResult;
import org.apache.rocketmq.client.producer.SendStatus;
import org.apache.rocketmq.client.producer.TransactionListener;
import org.apache.rocketmq.client.producer.TransactionMQProducer;
import org.apache.rocketmq.common.TopicConfig;
import org.apache.rocketmq.common.message.Message;
import org.apache.rocketmq.common.message.MessageExt;
import org.apache.rocketmq.common.message.MessageQueue;
import org.apache.rocketmq.remoting.protocol.route.BrokerData;
import org.apache.rocketmq.tools.admin.DefaultMQAdminExt;

/** Loads RocketMQ: one broker group of three, topics of four queues, asynchronous sends, batches and transactions. */
final class RocketLoad extends Load {
    private static final String TOPIC = "bench";
    private static final String TRANSACTION_TOPIC = "bench-transactions";
    private static final int SETTLED_SENDS = 20;
    private static final int SEND_TIMEOUT_MS = 20_000;
    private static final int PULL = 256;
    private final String nameServer;
    private final DefaultMQProducer producer = new DefaultMQProducer("bench-producers");
    private final TransactionMQProducer transactions = new TransactionMQProducer("bench-transactions");
    private boolean started;

    RocketLoad(String nameServer) {
        this.nameServer = nameServer;
    }

    @Override
    void prepare() throws Exception {
        createTopics();
        if (!started) {
            for (DefaultMQProducer each : List.of(producer, transactions)) {
                each.setNamesrvAddr(nameServer);
                each.setSendMsgTimeout(SEND_TIMEOUT_MS);
                each.setRetryTimesWhenSendFailed(0);
                each.setRetryTimesWhenSendAsyncFailed(0);
            }
            transactions.setTransactionListener(new TransactionListener() {
                @Override
                public LocalTransactionState executeLocalTransaction(Message message, Object argument) {
                    return LocalTransactionState.COMMIT_MESSAGE;
                }

                @Override
                public LocalTransactionState checkLocalTransaction(MessageExt message) {
                    return LocalTransactionState.COMMIT_MESSAGE;
                }
            });
            producer.start();
            transactions.start();
            started = true;
        }
        settle("");
    }

    private void createTopics() throws Exception {
        DefaultMQAdminExt admin = new DefaultMQAdminExt("bench-admin-" + System.nanoTime());
        admin.setNamesrvAddr(nameServer);
        admin.setInstanceName("admin-" + System.nanoTime());
        admin.start();
        try {
            Collection<BrokerData> brokers = admin.examineBrokerClusterInfo().getBrokerAddrTable().values();
            if (brokers.isEmpty()) throw new IllegalStateException("no broker is known to the name server");
            for (BrokerData broker : brokers) {
                String leader = broker.getBrokerAddrs().get(0L);
                if (leader == null || broker.getBrokerAddrs().size() < 3)
                    throw new IllegalStateException("the brokers have no leader yet, or are not three");
                for (String topic : List.of(TOPIC, TRANSACTION_TOPIC))
                    admin.createAndUpdateTopicConfig(leader, new TopicConfig(topic, QUEUES, QUEUES));
            }
        } finally {
            admin.shutdown();
        }
    }

    @Override
    void settle(String flavour) throws Exception {
        long deadline = System.nanoTime() + READY_TIMEOUT_MS * 1_000_000;
        int good = 0;
        while (good < SETTLED_SENDS) {
            try {
                check(producer.send(new Message(TOPIC, body(100)), 3_000));
                check(transactions.send(new Message(TRANSACTION_TOPIC, body(100)), 3_000));
                good++;
            } catch (Exception error) {
                if (System.nanoTime() > deadline) throw error;
                good = 0;
                Thread.sleep(200);
            }
        }
    }

    private static void check(SendResult result) {
        if (result.getSendStatus() != SendStatus.SEND_OK) throw new IllegalStateException(result.getSendStatus().name());
    }

    @Override
    String missing(String kind) {
        return null;
    }

    @Override
    boolean batches() {
        return true;
    }

    @Override
    void send(Request request, int queue, byte[][] bodies, Done done) throws Exception {
        SendCallback callback = new SendCallback() {
            @Override
            public void onSuccess(SendResult result) {
                boolean good = result.getSendStatus() == SendStatus.SEND_OK;
                done.answered(good ? null : new IllegalStateException(result.getSendStatus().name()));
            }

            @Override
            public void onException(Throwable error) {
                done.answered(error);
            }
        };
        if (bodies.length == 1) {
            producer.send(new Message(TOPIC, bodies[0]), callback, SEND_TIMEOUT_MS);
            return;
        }
        List<Message> messages = new ArrayList<>(bodies.length);
        for (byte[] body : bodies) messages.add(new Message(TOPIC, body));
        producer.send(messages, callback, SEND_TIMEOUT_MS);
    }

    @Override
    void transact(Request request, byte[] body) throws Exception {
        check(transactions.sendMessageInTransaction(new Message(TRANSACTION_TOPIC, body), null));
    }

    @Override
    AutoCloseable consume(Request request, Consumer<byte[]> taken) throws Exception {
        DefaultLitePullConsumer consumer = new DefaultLitePullConsumer("bench-" + System.nanoTime());
        consumer.setNamesrvAddr(nameServer);
        consumer.setInstanceName("consumer-" + System.nanoTime());
        consumer.setPullBatchSize(PULL);
        consumer.start();
        Collection<MessageQueue> queues = consumer.fetchMessageQueues(TOPIC);
        consumer.assign(queues);
        for (MessageQueue queue : queues) consumer.seekToEnd(queue);
        AtomicBoolean ended = new AtomicBoolean();
        Thread thread = new Thread(() -> {
            while (!ended.get()) for (MessageExt message : consumer.poll(100)) taken.accept(message.getBody());
        });
        thread.start();
        return () -> {
            ended.set(true);
            thread.join();
            consumer.shutdown();
        };
    }

    public static void main(String[] arguments) throws Exception {
        new RocketLoad(arguments[0]).serve();
    }
}
