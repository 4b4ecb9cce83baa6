// SPDX-License-Identifier: Apache-2.0
package kcodec.clients;

import java.io.BufferedReader;
import java.io.IOException;
import java.io.InputStreamReader;
import java.io.PrintStream;
import java.nio.charset.StandardCharsets;
import java.time.Duration;
import java.util.ArrayList;
import java.util.List;
import java.util.Map;
import java.util.Properties;
import java.util.concurrent.atomic.AtomicBoolean;
import org.apache.kafka.clients.consumer.ConsumerRecord;
import org.apache.kafka.clients.consumer.KafkaConsumer;
import org.apache.kafka.common.TopicPartition;
import org.apache.kafka.common.errors.RetriableException;
import org.apache.kafka.common.serialization.StringDeserializer;

/**
 * Kafka's own read_committed consumer during a proof: says each record of a topic as it comes, a line of partition,
 * offset and value with tabs between. When its input ends it goes on to the last stable offset, says "done" and ends.
 *
 * <p>Arguments: bootstrap servers, topic, number of partitions.
 */
public final class TopicReader {
    private TopicReader() {}

    public static void main(String[] arguments) throws Exception {
        PrintStream told = new PrintStream(System.out, false, StandardCharsets.UTF_8);
        System.setOut(System.err); // a library that prints must not spoil the lines
        AtomicBoolean isOver = new AtomicBoolean();
        Thread listener = new Thread(() -> waitForEnd(isOver));
        listener.setDaemon(true);
        listener.start();
        Properties properties = new Properties();
        properties.put("bootstrap.servers", arguments[0]);
        properties.put("isolation.level", "read_committed");
        properties.put("enable.auto.commit", "false");
        properties.put("auto.offset.reset", "earliest");
        properties.put("reconnect.backoff.max.ms", "100");
        List<TopicPartition> partitions = new ArrayList<>();
        for (int partition = 0; partition < Integer.parseInt(arguments[2]); partition++) {
            partitions.add(new TopicPartition(arguments[1], partition));
        }
        try (KafkaConsumer<String, String> consumer =
                new KafkaConsumer<>(properties, new StringDeserializer(), new StringDeserializer())) {
            consumer.assign(partitions);
            consumer.seekToBeginning(partitions);
            while (!isOver.get()) {
                tell(consumer, told);
            }
            Map<TopicPartition, Long> ends = endOffsets(consumer, partitions);
            while (ends.entrySet().stream().anyMatch(end -> consumer.position(end.getKey()) < end.getValue())) {
                tell(consumer, told);
            }
        }
        told.println("done");
        told.flush();
    }

    private static void waitForEnd(AtomicBoolean isOver) {
        try (BufferedReader input = new BufferedReader(new InputStreamReader(System.in, StandardCharsets.UTF_8))) {
            while (input.readLine() != null) {
                continue;
            }
        } catch (IOException broken) {
            System.err.println(broken);
        }
        isOver.set(true);
    }

    private static Map<TopicPartition, Long> endOffsets(
            KafkaConsumer<String, String> consumer, List<TopicPartition> partitions) {
        while (true) {
            try {
                return consumer.endOffsets(partitions);
            } catch (RetriableException again) {
                System.err.println(again);
            }
        }
    }

    private static void tell(KafkaConsumer<String, String> consumer, PrintStream told) {
        for (ConsumerRecord<String, String> record : consumer.poll(Duration.ofMillis(100))) {
            told.println(record.partition() + "\t" + record.offset() + "\t" + record.value());
        }
        told.flush();
    }
}
