import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.nio.ByteBuffer;
import java.nio.charset.StandardCharsets;
import java.util.Map;
import java.util.Random;
import java.util.TreeMap;
import java.util.concurrent.Semaphore;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.atomic.AtomicLong;
import java.util.regex.Matcher;
import java.util.regex.Pattern;

/**
 * What the Java clients of `make bench-peers` share: requests come as JSON lines on standard input, and answers are lines
 * that begin with LOAD (tests/bench/peers/client.py). A client says how a message is sent; this class decides when.
 */
abstract class Load {
    static final int QUEUES = 4;
    static final long READY_TIMEOUT_MS = 90_000;
    static final long DRAIN_TIMEOUT_MS = 60_000;
    static final int HEAD_BYTES = 16;
    static final int NOISE_BYTES = 1 << 20;
    static final double LOG_OF_BUCKET_FACTOR = Math.log(1.02);
    static final int BUCKETS = 1_500;
    static final byte[] NOISE = new byte[NOISE_BYTES];
    static final byte[] TEXT =
            "{\"order\": 4711, \"state\": \"paid\", \"warehouse\": \"north\"} ".repeat(400).getBytes(StandardCharsets.US_ASCII);
    static final AtomicLong SEQUENCE = new AtomicLong();

    static {
        new Random(1).nextBytes(NOISE);
    }

    /** The field `flavour` names the topic or mode, where one cluster has several. */
    record Request(String kind, int bytes, int atOnce, int batch, double warmUpS, double seconds, String flavour) {
        private static final Pattern FIELD = Pattern.compile("\"(\\w+)\": (?:\"([^\"]*)\"|([0-9.]+))");

        static Request of(String line) {
            Map<String, String> fields = new TreeMap<>();
            Matcher matcher = FIELD.matcher(line);
            while (matcher.find()) fields.put(matcher.group(1), matcher.group(2) != null ? matcher.group(2) : matcher.group(3));
            return new Request(
                    fields.get("kind"),
                    Integer.parseInt(fields.getOrDefault("bytes", "0")),
                    Integer.parseInt(fields.getOrDefault("at_once", "1")),
                    Integer.parseInt(fields.getOrDefault("batch", "1")),
                    Double.parseDouble(fields.getOrDefault("warm_up_s", "0")),
                    Double.parseDouble(fields.getOrDefault("seconds", "0")),
                    fields.getOrDefault("flavour", ""));
        }
    }

    /** Called once for each send that was answered, with null or the error. */
    interface Done {
        void answered(Throwable error);
    }

    /**
     * Counts what is acknowledged between begin and end, end to end also what is consumed after the end: without its
     * late messages a consumer that falls behind would look fast. Times are kept in buckets that grow by 2 %.
     */
    static final class Meter {
        final long beginNs;
        final long endNs;
        final double seconds;
        private final long countsUntilNs;
        private final long[] buckets = new long[BUCKETS];
        private long messages;
        private long all;
        private long errors;
        private String error = "";
        private double endToEndSeconds;

        Meter(Request request) {
            beginNs = System.nanoTime() + (long) (request.warmUpS * 1e9);
            endNs = beginNs + (long) (request.seconds * 1e9);
            seconds = request.seconds;
            countsUntilNs = request.kind.equals("end-to-end") ? Long.MAX_VALUE : endNs;
            Thread announcer = new Thread(() -> {
                try {
                    TimeUnit.NANOSECONDS.sleep(Math.max(0, beginNs - System.nanoTime()));
                } catch (InterruptedException ignored) {
                    return;
                }
                say("begin");
            });
            announcer.setDaemon(true);
            announcer.start();
        }

        boolean over() {
            return System.nanoTime() >= endNs;
        }

        synchronized void add(long sentNs, int count) {
            long now = System.nanoTime();
            all += count;
            if (now < beginNs || now >= countsUntilNs) return;
            messages += count;
            int bucket = (int) (Math.log(Math.max((now - sentNs) / 100.0, 1)) / LOG_OF_BUCKET_FACTOR);
            buckets[Math.min(bucket, BUCKETS - 1)] += count;
        }

        synchronized void fail(Throwable problem) {
            errors++;
            error = String.valueOf(problem);
        }

        /** Let the measured seconds end now, when the last message was consumed. */
        synchronized void untilNow() {
            endToEndSeconds = (System.nanoTime() - beginNs) / 1e9;
        }

        synchronized String json() {
            StringBuilder text = new StringBuilder();
            for (int bucket = 0; bucket < BUCKETS; bucket++) {
                if (buckets[bucket] == 0) continue;
                if (text.length() > 0) text.append(", ");
                text.append('"').append(bucket).append("\": ").append(buckets[bucket]);
            }
            return String.format(
                    java.util.Locale.ROOT,
                    "{\"messages\": %d, \"seconds\": %.6f, \"all_messages\": %d, \"errors\": %d, \"error\": \"%s\", \"buckets\": {%s}}",
                    messages, endToEndSeconds > 0 ? endToEndSeconds : seconds, all, errors,
                    error.replaceAll("[^A-Za-z0-9 .:,;()_/-]", " "), text);
        }
    }

    static synchronized void say(String line) {
        System.out.println("LOAD " + line);
        System.out.flush();
    }

    /** Return a message whose head is unique and of whose rest one half is noise and one is text. */
    static byte[] body(int size) {
        long number = SEQUENCE.incrementAndGet();
        byte[] made = new byte[size];
        ByteBuffer.wrap(made).putLong(System.nanoTime()).putLong(number);
        int half = (size - HEAD_BYTES) / 2;
        System.arraycopy(NOISE, (int) (number * half % (NOISE_BYTES - half)), made, HEAD_BYTES, half);
        System.arraycopy(TEXT, 0, made, HEAD_BYTES + half, size - HEAD_BYTES - half);
        return made;
    }

    static long sentNs(byte[] body) {
        return ByteBuffer.wrap(body).getLong();
    }

    /** Connect, and create what the loads need. Called again until it succeeds. */
    abstract void prepare() throws Exception;

    /** Return when the cluster takes messages again, without those of earlier loads where that is possible. */
    abstract void settle(String flavour) throws Exception;

    /** Return why there is no such load, or null. */
    abstract String missing(String kind);

    /** Tell whether the client can send several messages at once. */
    abstract boolean batches();

    /** Send `bodies` to the queue; one body is a plain send, several are a batch. Never blocks for the answer. */
    abstract void send(Request request, int queue, byte[][] bodies, Done done) throws Exception;

    /** Run one transaction until it is committed. */
    void transact(Request request, byte[] body) throws Exception {
        throw new UnsupportedOperationException();
    }

    /** Consume new messages of all queues until the returned object is closed; `taken` gets each body. */
    abstract AutoCloseable consume(Request request, java.util.function.Consumer<byte[]> taken) throws Exception;

    private void produce(Request request, Meter meter, AtomicLong sent, boolean measured) throws InterruptedException {
        // Without batches, as many single messages are on their way as others have in batches.
        int batch = batches() ? request.batch : 1;
        int atOnce = batches() ? request.atOnce : request.atOnce * request.batch;
        Semaphore free = new Semaphore(atOnce);
        for (int queue = 0; !meter.over(); queue = (queue + 1) % QUEUES) {
            free.acquire();
            byte[][] bodies = new byte[batch][];
            for (int n = 0; n < batch; n++) bodies[n] = body(request.bytes);
            long begun = System.nanoTime();
            Done done = error -> {
                if (error != null) meter.fail(error);
                else {
                    sent.addAndGet(bodies.length);
                    if (measured) meter.add(begun, bodies.length);
                }
                free.release();
            };
            try {
                send(request, queue, bodies, done);
            } catch (Exception error) {
                done.answered(error);
            }
        }
        if (!free.tryAcquire(atOnce, DRAIN_TIMEOUT_MS, TimeUnit.MILLISECONDS))
            meter.fail(new IllegalStateException("not all sends were answered"));
    }

    private void transactions(Request request, Meter meter) throws InterruptedException {
        Thread[] threads = new Thread[request.atOnce];
        for (int n = 0; n < threads.length; n++) {
            threads[n] = new Thread(() -> {
                while (!meter.over()) {
                    byte[] body = body(request.bytes);
                    long begun = System.nanoTime();
                    try {
                        transact(request, body);
                        meter.add(begun, 1);
                    } catch (Exception error) {
                        meter.fail(error);
                    }
                }
            });
            threads[n].start();
        }
        for (Thread thread : threads) thread.join();
    }

    private void endToEnd(Request request, Meter meter) throws Exception {
        AtomicLong sent = new AtomicLong();
        AtomicLong taken = new AtomicLong();
        AutoCloseable consuming = consume(request, body -> {
            if (sentNs(body) < meter.beginNs) return; // of an earlier load
            meter.add(sentNs(body), 1);
            taken.incrementAndGet();
        });
        try (consuming) {
            produce(request, meter, sent, false);
            long deadline = System.nanoTime() + DRAIN_TIMEOUT_MS * 1_000_000;
            while (taken.get() < sent.get()) {
                if (System.nanoTime() > deadline) throw new IllegalStateException("not all messages were consumed");
                Thread.sleep(1);
            }
            meter.untilNow();
        }
    }

    private void run(Request request) {
        try {
            if (request.kind.equals("settle")) {
                settle(request.flavour);
                say("settled");
                return;
            }
            String missing = missing(request.kind);
            if (missing != null) {
                say("missing " + missing);
                return;
            }
            Meter meter = new Meter(request);
            switch (request.kind) {
                case "transactions" -> transactions(request, meter);
                case "end-to-end" -> endToEnd(request, meter);
                default -> produce(request, meter, new AtomicLong(), true);
            }
            say("end");
            say("result " + meter.json());
        } catch (Exception error) {
            say("failed " + String.valueOf(error).replace('\n', ' '));
        }
    }

    void serve() throws Exception {
        long deadline = System.nanoTime() + READY_TIMEOUT_MS * 1_000_000;
        while (true) {
            try {
                prepare();
                break;
            } catch (Exception error) {
                if (System.nanoTime() > deadline) {
                    say("failed " + String.valueOf(error).replace('\n', ' '));
                    System.exit(1);
                }
                Thread.sleep(500);
            }
        }
        say("ready");
        BufferedReader lines = new BufferedReader(new InputStreamReader(System.in));
        for (String line = lines.readLine(); line != null; line = lines.readLine()) run(Request.of(line));
        System.exit(0);
    }
}
