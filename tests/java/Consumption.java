// SPDX-License-Identifier: Apache-2.0
package kcodec.clients;

import com.fasterxml.jackson.databind.JsonNode;
import com.fasterxml.jackson.databind.node.ArrayNode;
import com.fasterxml.jackson.databind.node.ObjectNode;
import java.nio.ByteBuffer;
import java.security.MessageDigest;
import java.security.NoSuchAlgorithmException;
import java.time.Duration;
import java.util.ArrayList;
import java.util.HashMap;
import java.util.HexFormat;
import java.util.List;
import java.util.Map;
import java.util.Properties;
import org.apache.kafka.clients.consumer.ConsumerRecord;
import org.apache.kafka.clients.consumer.KafkaConsumer;
import org.apache.kafka.common.TopicPartition;
import org.apache.kafka.common.errors.TimeoutException;
import org.apache.kafka.common.header.Header;
import org.apache.kafka.common.serialization.ByteArrayDeserializer;

/**
 * All that Kafka's consumer delivers of some topics, from the first offset to the end there was when it began (under
 * read_committed: the last stable offset).
 *
 * <p>Answer: {@code ends} as [topic, partition, end], and {@code records} as [topic, partition, offset, timestamp, key,
 * value, headers] in the order of each partition; or, with {@code digest}, {@code digests} as [topic, partition, count,
 * SHA-256 of all keys and values, each after its int32 length].
 */
final class Consumption {
    private final List<String> topics = new ArrayList<>();
    private final boolean digest;
    private final long timeoutMs;

    Consumption(JsonNode question) {
        question.get("topics").forEach(topic -> topics.add(topic.asText()));
        digest = question.get("digest").asBoolean();
        timeoutMs = question.get("timeout_ms").asLong();
    }

    void write(Properties properties, ObjectNode answer) throws NoSuchAlgorithmException {
        try (KafkaConsumer<byte[], byte[]> consumer =
                new KafkaConsumer<>(properties, new ByteArrayDeserializer(), new ByteArrayDeserializer())) {
            List<TopicPartition> partitions = new ArrayList<>();
            for (String topic : topics) {
                consumer.partitionsFor(topic).forEach(
                        found -> partitions.add(new TopicPartition(topic, found.partition())));
            }
            consumer.assign(partitions);
            consumer.seekToBeginning(partitions);
            Map<TopicPartition, Long> ends = consumer.endOffsets(partitions);
            ArrayNode written = answer.putArray("ends");
            ends.forEach((partition, end) -> place(written, partition).add(end));
            if (digest) {
                writeDigests(consumer, ends, answer.putArray("digests"));
            } else {
                ArrayNode records = answer.putArray("records");
                consume(consumer, ends, record -> write(record, records));
            }
        }
    }

    private static ArrayNode place(ArrayNode rows, TopicPartition partition) {
        return rows.addArray().add(partition.topic()).add(partition.partition());
    }

    private interface Taker {
        void take(ConsumerRecord<byte[], byte[]> record);
    }

    private void consume(KafkaConsumer<byte[], byte[]> consumer, Map<TopicPartition, Long> ends, Taker taker) {
        long deadline = System.nanoTime() + timeoutMs * 1_000_000;
        Map<TopicPartition, Long> left = new HashMap<>(ends);
        left.entrySet().removeIf(entry -> consumer.position(entry.getKey()) >= entry.getValue());
        while (!left.isEmpty()) {
            if (System.nanoTime() > deadline) {
                throw new TimeoutException("the end was not reached within " + timeoutMs + " ms: " + left);
            }
            for (ConsumerRecord<byte[], byte[]> record : consumer.poll(Duration.ofMillis(100))) {
                if (record.offset() < ends.get(new TopicPartition(record.topic(), record.partition()))) {
                    taker.take(record);
                }
            }
            left.entrySet().removeIf(entry -> consumer.position(entry.getKey()) >= entry.getValue());
        }
    }

    private static void write(ConsumerRecord<byte[], byte[]> record, ArrayNode records) {
        ArrayNode row = place(records, new TopicPartition(record.topic(), record.partition()));
        row.add(record.offset()).add(record.timestamp()).add(record.key()).add(record.value());
        ArrayNode headers = row.addArray();
        for (Header header : record.headers()) {
            headers.addArray().add(header.key()).add(header.value());
        }
    }

    private void writeDigests(KafkaConsumer<byte[], byte[]> consumer, Map<TopicPartition, Long> ends, ArrayNode rows)
            throws NoSuchAlgorithmException {
        Map<TopicPartition, MessageDigest> digests = new HashMap<>();
        Map<TopicPartition, Long> counts = new HashMap<>();
        for (TopicPartition partition : ends.keySet()) {
            digests.put(partition, MessageDigest.getInstance("SHA-256"));
            counts.put(partition, 0L);
        }
        consume(consumer, ends, record -> {
            TopicPartition partition = new TopicPartition(record.topic(), record.partition());
            counts.merge(partition, 1L, Long::sum);
            update(digests.get(partition), record.key());
            update(digests.get(partition), record.value());
        });
        for (TopicPartition partition : ends.keySet()) {
            String hex = HexFormat.of().formatHex(digests.get(partition).digest());
            place(rows, partition).add(counts.get(partition)).add(hex);
        }
    }

    private static void update(MessageDigest digest, byte[] bytes) {
        digest.update(ByteBuffer.allocate(4).putInt(bytes == null ? -1 : bytes.length).array());
        if (bytes != null) {
            digest.update(bytes);
        }
    }
}
