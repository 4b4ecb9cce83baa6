// SPDX-License-Identifier: Apache-2.0
package kcodec.clients;

import java.time.Duration;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.Properties;
import java.util.concurrent.ConcurrentHashMap;
import org.apache.kafka.clients.consumer.ConsumerRecord;
import org.apache.kafka.clients.consumer.KafkaConsumer;
import org.apache.kafka.clients.consumer.OffsetAndMetadata;
import org.apache.kafka.clients.producer.KafkaProducer;
import org.apache.kafka.clients.producer.ProducerRecord;
import org.apache.kafka.common.TopicPartition;
import org.apache.kafka.common.serialization.ByteArrayDeserializer;
import org.apache.kafka.common.serialization.ByteArraySerializer;

/**
 * How long transactions of Kafka's own clients take to end, and to be seen: one line a transaction, in microseconds:
 * the whole end (flush, offsets, commit); commitTransaction; from its call to the record at a read_committed consumer.
 *
 * <p>Arguments: servers, input topic, output topic, number, "offsets" or "produce", a name of its own.
 */
public final class CommitTimes {
    private static final Duration SHORT = Duration.ofMillis(50);

    private CommitTimes() {}

    public static void main(String[] arguments) throws Exception {
        String servers = arguments[0];
        String input = arguments[1];
        String output = arguments[2];
        int count = Integer.parseInt(arguments[3]);
        boolean hasOffsets = arguments[4].equals("offsets");
        String name = arguments[5];
        Map<String, Long> seen = new ConcurrentHashMap<>();
        Thread reader = new Thread(() -> read(servers, output, seen));
        reader.setDaemon(true);
        reader.start();
        try (KafkaProducer<byte[], byte[]> producer = producer(servers, name);
                KafkaProducer<byte[], byte[]> feeder = producer(servers, null);
                KafkaConsumer<byte[], byte[]> consumer = consumer(servers, name)) {
            producer.initTransactions();
            consumer.subscribe(List.of(input));
            for (int number = 0; number < count; number++) {
                String value = name + "-" + number;
                Map<TopicPartition, OffsetAndMetadata> offsets = new HashMap<>();
                if (hasOffsets) {
                    feeder.send(new ProducerRecord<>(input, 0, null, value.getBytes())).get();
                    while (offsets.isEmpty()) {
                        for (ConsumerRecord<byte[], byte[]> record : consumer.poll(SHORT)) {
                            offsets.put(
                                    new TopicPartition(record.topic(), record.partition()),
                                    new OffsetAndMetadata(record.offset() + 1));
                        }
                    }
                }
                producer.beginTransaction();
                producer.send(new ProducerRecord<>(output, 0, null, value.getBytes()));
                long begin = System.nanoTime();
                producer.flush();
                if (hasOffsets) {
                    producer.sendOffsetsToTransaction(offsets, consumer.groupMetadata());
                }
                long asked = System.nanoTime();
                producer.commitTransaction();
                long ended = System.nanoTime();
                while (!seen.containsKey(value)) {
                    Thread.sleep(1);
                }
                System.out.printf(
                        "%d %d %d%n",
                        (ended - begin) / 1000, (ended - asked) / 1000, (seen.get(value) - asked) / 1000);
                Thread.sleep(10);
            }
        }
    }

    private static void read(String servers, String topic, Map<String, Long> seen) {
        try (KafkaConsumer<byte[], byte[]> consumer = consumer(servers, null)) {
            TopicPartition partition = new TopicPartition(topic, 0);
            consumer.assign(List.of(partition));
            consumer.seekToBeginning(List.of(partition));
            while (true) {
                for (ConsumerRecord<byte[], byte[]> record : consumer.poll(SHORT)) {
                    seen.put(new String(record.value()), System.nanoTime());
                }
            }
        }
    }

    private static KafkaProducer<byte[], byte[]> producer(String servers, String name) {
        Properties properties = new Properties();
        properties.put("bootstrap.servers", servers);
        properties.put("linger.ms", "0");
        if (name != null) {
            properties.put("transactional.id", name);
        }
        return new KafkaProducer<>(properties, new ByteArraySerializer(), new ByteArraySerializer());
    }

    private static KafkaConsumer<byte[], byte[]> consumer(String servers, String group) {
        Properties properties = new Properties();
        properties.put("bootstrap.servers", servers);
        properties.put("isolation.level", "read_committed");
        properties.put("auto.offset.reset", "earliest");
        properties.put("enable.auto.commit", "false");
        if (group != null) {
            properties.put("group.id", group);
        }
        return new KafkaConsumer<>(properties, new ByteArrayDeserializer(), new ByteArrayDeserializer());
    }
}
