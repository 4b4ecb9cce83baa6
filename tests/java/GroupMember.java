// SPDX-License-Identifier: Apache-2.0
package kcodec.clients;

import com.fasterxml.jackson.databind.JsonNode;
import com.fasterxml.jackson.databind.node.ArrayNode;
import com.fasterxml.jackson.databind.node.ObjectNode;
import java.time.Duration;
import java.util.ArrayList;
import java.util.Collection;
import java.util.Comparator;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.Properties;
import java.util.TreeMap;
import org.apache.kafka.clients.consumer.CloseOptions;
import org.apache.kafka.clients.consumer.ConsumerRebalanceListener;
import org.apache.kafka.clients.consumer.ConsumerRecord;
import org.apache.kafka.clients.consumer.KafkaConsumer;
import org.apache.kafka.clients.consumer.SubscriptionPattern;
import org.apache.kafka.common.TopicPartition;
import org.apache.kafka.common.errors.WakeupException;
import org.apache.kafka.common.serialization.ByteArrayDeserializer;

/**
 * A member of a group that polls in a thread of its own until it is closed, and remembers what it was told.
 *
 * <p>{@code state} gives {@code owned} as [topic, partition]; {@code events} as [kind, nanoseconds, partitions], kind one
 * of revoked, assigned, lost; {@code records} as [topic, partition, [first offset, last offset, ...]], a pair for each
 * run of offsets that followed one another; {@code firsts} as [topic, partition, nanoseconds of the first record since
 * it was assigned]; {@code failure} if the thread ended by itself.
 * Nanoseconds are those of the machine's monotonic clock.
 */
final class GroupMember implements ConsumerRebalanceListener {
    private static final Comparator<TopicPartition> ORDER =
            Comparator.comparing(TopicPartition::topic).thenComparingInt(TopicPartition::partition);
    private static final Duration POLL = Duration.ofMillis(100);

    private record Event(String kind, long nanos, List<TopicPartition> partitions) {}

    private final KafkaConsumer<byte[], byte[]> consumer;
    private final Thread thread;
    private final List<Event> events = new ArrayList<>();
    private final Map<TopicPartition, List<Long>> progress = new TreeMap<>(ORDER);
    private final Map<TopicPartition, Long> firsts = new HashMap<>();
    private final List<TopicPartition> owned = new ArrayList<>();
    private String failure;
    private volatile boolean closing;
    private volatile boolean leaving = true;

    GroupMember(JsonNode question, Properties properties) {
        consumer = new KafkaConsumer<>(properties, new ByteArrayDeserializer(), new ByteArrayDeserializer());
        if (question.hasNonNull("pattern")) {
            consumer.subscribe(new SubscriptionPattern(question.get("pattern").asText()), this);
        } else {
            List<String> topics = new ArrayList<>();
            question.get("topics").forEach(topic -> topics.add(topic.asText()));
            consumer.subscribe(topics, this);
        }
        thread = new Thread(this::run);
        thread.setDaemon(true);
        thread.start();
    }

    private void run() {
        try {
            while (!closing) {
                for (ConsumerRecord<byte[], byte[]> record : consumer.poll(POLL)) {
                    note(record);
                }
            }
        } catch (WakeupException woken) {
            // close() asked for it
        } catch (RuntimeException failed) {
            synchronized (this) {
                failure = failed.toString();
            }
        }
        CloseOptions.GroupMembershipOperation operation = leaving
                ? CloseOptions.GroupMembershipOperation.DEFAULT
                : CloseOptions.GroupMembershipOperation.REMAIN_IN_GROUP;
        consumer.close(CloseOptions.timeout(Duration.ofSeconds(10)).withGroupMembershipOperation(operation));
    }

    private synchronized void note(ConsumerRecord<byte[], byte[]> record) {
        TopicPartition partition = new TopicPartition(record.topic(), record.partition());
        firsts.putIfAbsent(partition, System.nanoTime());
        List<Long> runs = progress.computeIfAbsent(partition, unused -> new ArrayList<>());
        int last = runs.size() - 1;
        if (last >= 0 && runs.get(last) + 1 == record.offset()) {
            runs.set(last, record.offset());
        } else {
            runs.add(record.offset());
            runs.add(record.offset());
        }
    }

    @Override
    public synchronized void onPartitionsAssigned(Collection<TopicPartition> partitions) {
        events.add(new Event("assigned", System.nanoTime(), List.copyOf(partitions)));
        owned.addAll(partitions);
        partitions.forEach(firsts::remove);
    }

    @Override
    public synchronized void onPartitionsRevoked(Collection<TopicPartition> partitions) {
        events.add(new Event("revoked", System.nanoTime(), List.copyOf(partitions)));
        owned.removeAll(partitions);
    }

    @Override
    public synchronized void onPartitionsLost(Collection<TopicPartition> partitions) {
        events.add(new Event("lost", System.nanoTime(), List.copyOf(partitions)));
        owned.removeAll(partitions);
    }

    synchronized void state(ObjectNode answer) {
        ArrayNode rows = answer.putArray("owned");
        owned.stream().sorted(ORDER).forEach(partition -> place(rows, partition));
        ArrayNode told = answer.putArray("events");
        for (Event event : events) {
            ArrayNode partitions = told.addArray().add(event.kind).add(event.nanos).addArray();
            event.partitions.forEach(partition -> place(partitions, partition));
        }
        ArrayNode records = answer.putArray("records");
        progress.forEach((partition, runs) -> {
            ArrayNode row = place(records, partition).addArray();
            runs.forEach(row::add);
        });
        ArrayNode first = answer.putArray("firsts");
        firsts.forEach((partition, nanos) -> place(first, partition).add(nanos));
        answer.put("failure", failure);
    }

    private static ArrayNode place(ArrayNode rows, TopicPartition partition) {
        return rows.addArray().add(partition.topic()).add(partition.partition());
    }

    /** Ends the thread; leave false: the group is not told. */
    void close(boolean leave) throws InterruptedException {
        leaving = leave;
        closing = true;
        consumer.wakeup();
        thread.join(20_000);
    }
}
