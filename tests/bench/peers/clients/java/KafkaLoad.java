import java.time.Duration;
import java.util.ArrayList;
import java.util.List;
import java.util.Map;
import java.util.Properties;
import java.util.concurrent.ExecutionException;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.atomic.AtomicBoolean;
import java.util.function.Consumer;
import org.apache.kafka.clients.admin.Admin;
import org.apache.kafka.clients.admin.NewTopic;
import org.apache.kafka.clients.admin.RecordsToDelete;
import org.apache.kafka.clients.consumer.ConsumerRecord;
import org.apache.kafka.clients.consumer.KafkaConsumer;
import org.apache.kafka.clients.producer.KafkaProducer;
import org.apache.kafka.clients.producer.ProducerRecord;
import org.apache.kafka.common.TopicPartition;
import org.apache.kafka.common.errors.TopicExistsException;
import org.apache.kafka.common.serialization.ByteArrayDeserializer;
import org.apache.kafka.common.serialization.ByteArraySerializer;

/**
 * Loads Kafka with idempotent producers and acks=all. The flavour is the topic: `default`, or `flushed` with
 * flush.messages=1. The producer chooses the partitions, so that its batches are large. Messages that must not wait have linger.ms=0; batches have 20 ms and 1 MiB.
 */
final class KafkaLoad extends Load {
    private static final int SETTLED_SENDS = 20;
    private static final int LINGER_MS = 20;
    private static final int BATCH_BYTES = 1 << 20;
    private final String servers;
    private final Admin admin;
    private final KafkaProducer<byte[], byte[]> prompt;
    private final KafkaProducer<byte[], byte[]> ordinary;
    private final KafkaProducer<byte[], byte[]> collecting;

    KafkaLoad(String servers) {
        this.servers = servers;
        admin = Admin.create(Map.of("bootstrap.servers", (Object) servers));
        prompt = producer(Map.of("linger.ms", 0));
        ordinary = producer(Map.of());
        collecting = producer(Map.of("linger.ms", LINGER_MS, "batch.size", BATCH_BYTES, "buffer.memory", 64L << 20));
    }

    private KafkaProducer<byte[], byte[]> producer(Map<String, Object> settings) {
        Properties properties = new Properties();
        properties.put("bootstrap.servers", servers);
        properties.put("acks", "all");
        properties.put("enable.idempotence", true);
        properties.putAll(settings);
        return new KafkaProducer<>(properties, new ByteArraySerializer(), new ByteArraySerializer());
    }

    @Override
    void prepare() throws Exception {
        create("default", Map.of());
        create("flushed", Map.of("flush.messages", "1"));
        settle("default");
        settle("flushed");
    }

    private void create(String topic, Map<String, String> settings) throws Exception {
        try {
            admin.createTopics(List.of(new NewTopic(topic, QUEUES, (short) 3).configs(settings))).all().get();
        } catch (ExecutionException error) {
            if (!(error.getCause() instanceof TopicExistsException)) throw error;
        }
    }

    @Override
    void settle(String flavour) throws Exception {
        for (int number = 0; number < SETTLED_SENDS; number++)
            prompt.send(new ProducerRecord<>(flavour, number % QUEUES, null, body(100))).get(READY_TIMEOUT_MS, TimeUnit.MILLISECONDS);
        Map<TopicPartition, RecordsToDelete> all = new java.util.HashMap<>();
        for (int queue = 0; queue < QUEUES; queue++)
            all.put(new TopicPartition(flavour, queue), RecordsToDelete.beforeOffset(-1));
        admin.deleteRecords(all).all().get();
    }

    @Override
    String missing(String kind) {
        return kind.equals("transactions") ? "Kafka has no half messages" : null;
    }

    @Override
    boolean batches() {
        return false; // the producer collects batches by itself
    }

    @Override
    void send(Request request, int queue, byte[][] bodies, Done done) {
        KafkaProducer<byte[], byte[]> producer =
                switch (request.kind()) {
                    case "one", "senders" -> prompt;
                    case "saturating" -> ordinary;
                    default -> collecting;
                };
        producer.send(new ProducerRecord<>(request.flavour(), bodies[0]), (place, error) -> done.answered(error));
    }

    @Override
    AutoCloseable consume(Request request, Consumer<byte[]> taken) throws Exception {
        Properties properties = new Properties();
        properties.put("bootstrap.servers", servers);
        properties.put("group.id", "bench-" + System.nanoTime());
        KafkaConsumer<byte[], byte[]> consumer =
                new KafkaConsumer<>(properties, new ByteArrayDeserializer(), new ByteArrayDeserializer());
        List<TopicPartition> partitions = new ArrayList<>();
        for (int queue = 0; queue < QUEUES; queue++) partitions.add(new TopicPartition(request.flavour(), queue));
        consumer.assign(partitions);
        consumer.seekToEnd(partitions);
        for (TopicPartition partition : partitions) consumer.position(partition);
        AtomicBoolean ended = new AtomicBoolean();
        Thread thread = new Thread(() -> {
            while (!ended.get())
                for (ConsumerRecord<byte[], byte[]> record : consumer.poll(Duration.ofMillis(100))) taken.accept(record.value());
        });
        thread.start();
        return () -> {
            ended.set(true);
            thread.join();
            consumer.close();
        };
    }

    public static void main(String[] arguments) throws Exception {
        new KafkaLoad(arguments[0]).serve();
    }
}
