// SPDX-License-Identifier: Apache-2.0
package org.apache.kafka.clients.consumer.internals;

import java.io.BufferedReader;
import java.io.ByteArrayOutputStream;
import java.io.IOException;
import java.io.InputStreamReader;
import java.nio.ByteBuffer;
import java.nio.ByteOrder;
import java.nio.charset.StandardCharsets;
import java.nio.file.Files;
import java.nio.file.Path;
import java.security.MessageDigest;
import java.util.HashMap;
import java.util.HexFormat;
import java.util.List;
import java.util.Map;
import java.util.Set;

import org.apache.kafka.clients.consumer.ConsumerRecord;
import org.apache.kafka.common.IsolationLevel;
import org.apache.kafka.common.TopicPartition;
import org.apache.kafka.common.compress.Compression;
import org.apache.kafka.common.header.Header;
import org.apache.kafka.common.message.FetchResponseData;
import org.apache.kafka.common.metrics.Metrics;
import org.apache.kafka.common.record.TimestampType;
import org.apache.kafka.common.record.internal.MemoryRecords;
import org.apache.kafka.common.record.internal.MemoryRecordsBuilder;
import org.apache.kafka.common.record.internal.MutableRecordBatch;
import org.apache.kafka.common.record.internal.Record;
import org.apache.kafka.common.serialization.ByteArrayDeserializer;
import org.apache.kafka.common.utils.internals.BufferSupplier;
import org.apache.kafka.common.utils.internals.LogContext;
import org.slf4j.Logger;
import org.slf4j.LoggerFactory;

/**
 * Java's consumer on the bytes of one fetch: CompletedFetch.fetchRecords, CRCs checked, all records in one call, keys and
 * values as byte[]. The class is package-private, hence this package.
 *
 * A worker that lives as long as the comparison; one command a line on standard input, one answer a line:
 * <pre>
 * load NAME FILE          keeps the bytes of a file                      -> ok
 * time NAME MILLISECONDS  calls for this time                            -> nanoseconds a call, records
 * digest NAME             the columns as benchmarks/contestants.py does  -> SHA-256, records
 * build CODEC FILE TO     the batches again by MemoryRecordsBuilder      -> ok
 * encode NAME CODEC MILLISECONDS, made NAME CODEC FILE: see BatchEncoding
 * </pre>
 */
public final class FetchWorker {
    private static final Logger LOG = LoggerFactory.getLogger(CompletedFetch.class);
    private static final TopicPartition PARTITION = new TopicPartition("bench", 0);

    private final SubscriptionState subscriptions =
        new SubscriptionState(new LogContext(), AutoOffsetResetStrategy.EARLIEST);
    private final FetchMetricsManager metrics =
        new FetchMetricsManager(new Metrics(), new FetchMetricsRegistry(Set.of(), "consumer"));
    private final FetchConfig config = new FetchConfig(1, 52428800, 500, 1048576, Integer.MAX_VALUE, true, "",
        IsolationLevel.READ_UNCOMMITTED);
    private final Deserializers<byte[], byte[]> deserializers =
        new Deserializers<>(new ByteArrayDeserializer(), new ByteArrayDeserializer(), new Metrics());
    private final BufferSupplier buffers = BufferSupplier.create();
    private final Map<String, byte[]> loaded = new HashMap<>();
    private final Map<String, BatchEncoding> encodings = new HashMap<>();

    private FetchWorker() {
        subscriptions.assignFromUser(Set.of(PARTITION));
    }

    private List<ConsumerRecord<byte[], byte[]>> fetch(byte[] data) {
        FetchResponseData.PartitionData response = new FetchResponseData.PartitionData()
            .setPartitionIndex(PARTITION.partition())
            .setHighWatermark(Long.MAX_VALUE)
            .setLastStableOffset(Long.MAX_VALUE)
            .setRecords(MemoryRecords.readableRecords(ByteBuffer.wrap(data)));
        CompletedFetch fetch = new CompletedFetch(LOG, subscriptions, buffers, PARTITION, response,
            new FetchMetricsAggregator(metrics, Set.of(PARTITION)), 0L);
        return fetch.fetchRecords(config, deserializers, Integer.MAX_VALUE);
    }

    private String time(byte[] data, long milliseconds) {
        long records = fetch(data).size();
        long begin = System.nanoTime();
        long spent;
        long calls = 0;
        do {
            records = fetch(data).size();
            calls++;
            spent = System.nanoTime() - begin;
        } while (spent < milliseconds * 1_000_000L);
        return spent / (double) calls + " " + records;
    }

    /** Validity, lengths and bytes of one column, in the order the digest wants. */
    private static final class Column {
        private final ByteArrayOutputStream valid = new ByteArrayOutputStream();
        private final ByteArrayOutputStream lengths = new ByteArrayOutputStream();
        private final ByteArrayOutputStream bytes = new ByteArrayOutputStream();

        void add(byte[] value) {
            valid.write(value == null ? 0 : 1);
            lengths.writeBytes(littleEndian(4, value == null ? 0 : value.length));
            if (value != null) {
                bytes.writeBytes(value);
            }
        }

        void into(MessageDigest digest) {
            digest.update(valid.toByteArray());
            digest.update(lengths.toByteArray());
            digest.update(bytes.toByteArray());
        }
    }

    private static byte[] littleEndian(int size, long value) {
        ByteBuffer buffer = ByteBuffer.allocate(8).order(ByteOrder.LITTLE_ENDIAN).putLong(value);
        return java.util.Arrays.copyOf(buffer.array(), size);
    }

    private String digest(byte[] data) throws Exception {
        ByteArrayOutputStream offsets = new ByteArrayOutputStream();
        ByteArrayOutputStream timestamps = new ByteArrayOutputStream();
        ByteArrayOutputStream lists = new ByteArrayOutputStream();
        Column keys = new Column();
        Column values = new Column();
        Column names = new Column();
        Column contents = new Column();
        List<ConsumerRecord<byte[], byte[]>> records = fetch(data);
        for (ConsumerRecord<byte[], byte[]> record : records) {
            offsets.writeBytes(littleEndian(8, record.offset()));
            timestamps.writeBytes(littleEndian(8, record.timestamp()));
            keys.add(record.key());
            values.add(record.value());
            int count = 0;
            for (Header header : record.headers()) {
                names.add(header.key().getBytes(StandardCharsets.UTF_8));
                contents.add(header.value());
                count++;
            }
            lists.writeBytes(littleEndian(4, count));
        }
        MessageDigest digest = MessageDigest.getInstance("SHA-256");
        digest.update(offsets.toByteArray());
        digest.update(timestamps.toByteArray());
        keys.into(digest);
        values.into(digest);
        digest.update(lists.toByteArray());
        names.into(digest);
        contents.into(digest);
        return HexFormat.of().formatHex(digest.digest()) + " " + records.size();
    }

    /** Every batch of the input again, its records unchanged, compressed as a Java producer would by default. */
    private static void build(String codec, Path from, Path to) throws IOException {
        ByteArrayOutputStream all = new ByteArrayOutputStream();
        MemoryRecords records = MemoryRecords.readableRecords(ByteBuffer.wrap(Files.readAllBytes(from)));
        for (MutableRecordBatch batch : records.batches()) {
            MemoryRecordsBuilder builder = new MemoryRecordsBuilder(ByteBuffer.allocate(batch.sizeInBytes() + 1024),
                (byte) 2, Compression.of(codec).build(), TimestampType.CREATE_TIME, batch.baseOffset(), -1L, -1L,
                (short) -1, -1, false, false, -1, Integer.MAX_VALUE);
            for (Record record : batch) {
                builder.append(record);
            }
            ByteBuffer built = builder.build().buffer().duplicate();
            byte[] bytes = new byte[built.remaining()];
            built.get(bytes);
            all.writeBytes(bytes);
        }
        Files.write(to, all.toByteArray());
    }

    private BatchEncoding encoding(String name) {
        return encodings.computeIfAbsent(name, loadedAs -> new BatchEncoding(loaded.get(loadedAs)));
    }

    private String answer(String[] words) throws Exception {
        switch (words[0]) {
            case "load":
                loaded.put(words[1], Files.readAllBytes(Path.of(words[2])));
                return "ok";
            case "time":
                return time(loaded.get(words[1]), Long.parseLong(words[2]));
            case "digest":
                return digest(loaded.get(words[1]));
            case "build":
                build(words[1], Path.of(words[2]), Path.of(words[3]));
                return "ok";
            case "encode":
                return encoding(words[1]).time(words[2], Long.parseLong(words[3]));
            case "made":
                Files.write(Path.of(words[3]), encoding(words[1]).made(words[2]));
                return "ok";
            default:
                throw new IllegalArgumentException("no command " + words[0]);
        }
    }

    public static void main(String[] arguments) throws Exception {
        FetchWorker worker = new FetchWorker();
        BufferedReader input = new BufferedReader(new InputStreamReader(System.in, StandardCharsets.UTF_8));
        for (String line = input.readLine(); line != null; line = input.readLine()) {
            System.out.println(worker.answer(line.split("\t")));
        }
    }
}
