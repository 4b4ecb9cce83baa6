// SPDX-License-Identifier: Apache-2.0
package org.apache.kafka.clients.consumer.internals;

import com.fasterxml.jackson.core.JsonGenerator;
import java.io.IOException;
import java.nio.ByteBuffer;
import java.util.ArrayList;
import java.util.List;
import java.util.Set;
import kcodec.judge.Answers;
import org.apache.kafka.clients.consumer.ConsumerRecord;
import org.apache.kafka.common.IsolationLevel;
import org.apache.kafka.common.TopicPartition;
import org.apache.kafka.common.message.FetchResponseData;
import org.apache.kafka.common.metrics.Metrics;
import org.apache.kafka.common.record.internal.MemoryRecords;
import org.apache.kafka.common.serialization.ByteArrayDeserializer;
import org.apache.kafka.common.utils.internals.BufferSupplier;
import org.apache.kafka.common.utils.internals.LogContext;
import org.slf4j.Logger;

/**
 * What the Java consumer delivers from one partition of a Fetch answer: {@link CompletedFetch} with the consumer's
 * own configuration, subscription and metrics objects. It lies in Kafka's package because that class is not public.
 *
 * <p>Answer: {@code records} in the order delivered, {@code position} the offset the next fetch would ask for, {@code
 * error} if the fetch ended in an exception (the records delivered before it are there).
 */
public final class ConsumerJudge {
    private static final TopicPartition PARTITION = new TopicPartition("judged", 0);

    private final LogContext logContext = new LogContext();
    private final Logger logger = logContext.logger(CompletedFetch.class);
    private final Metrics metrics = new Metrics();
    private final FetchMetricsManager metricsManager = new FetchMetricsManager(metrics, new FetchMetricsRegistry());
    private final Deserializers<byte[], byte[]> deserializers =
            new Deserializers<>(new ByteArrayDeserializer(), new ByteArrayDeserializer(), metrics);

    /** Reads the question's arguments and writes the answer's fields. */
    public void write(ByteBuffer question, JsonGenerator out) throws IOException {
        IsolationLevel isolation = question.get() == 1 ? IsolationLevel.READ_COMMITTED : IsolationLevel.READ_UNCOMMITTED;
        boolean checkCrcs = question.get() == 1;
        long fetchOffset = question.getLong();
        FetchResponseData.PartitionData answer = new FetchResponseData.PartitionData()
                .setPartitionIndex(PARTITION.partition())
                .setAbortedTransactions(readAborted(question))
                .setRecords(MemoryRecords.readableRecords(question.slice()));
        FetchConfig config = new FetchConfig(1, Integer.MAX_VALUE, 0, Integer.MAX_VALUE, 1, checkCrcs, "", isolation);
        SubscriptionState subscriptions = new SubscriptionState(logContext, AutoOffsetResetStrategy.NONE);
        subscriptions.assignFromUser(Set.of(PARTITION));
        CompletedFetch fetch = new CompletedFetch(logger, subscriptions, BufferSupplier.NO_CACHING, PARTITION, answer,
                new FetchMetricsAggregator(metricsManager, Set.of(PARTITION)), fetchOffset);
        List<ConsumerRecord<byte[], byte[]>> delivered = new ArrayList<>();
        Throwable error = null;
        try {
            // One record a call, so that those before an exception are kept whatever its class.
            List<ConsumerRecord<byte[], byte[]>> next = fetch.fetchRecords(config, deserializers, 1);
            while (!next.isEmpty()) {
                delivered.addAll(next);
                next = fetch.fetchRecords(config, deserializers, 1);
            }
        } catch (RuntimeException | Error refused) {
            error = refused;
        }
        writeRecords(delivered, out);
        out.writeNumberField("position", fetch.nextFetchOffset());
        if (error != null) {
            Answers.writeError(out, "error", error);
        }
    }

    private static List<FetchResponseData.AbortedTransaction> readAborted(ByteBuffer question) {
        List<FetchResponseData.AbortedTransaction> aborted = new ArrayList<>();
        for (int left = question.getInt(); left > 0; left--) {
            aborted.add(new FetchResponseData.AbortedTransaction()
                    .setProducerId(question.getLong())
                    .setFirstOffset(question.getLong()));
        }
        return aborted;
    }

    private static void writeRecords(List<ConsumerRecord<byte[], byte[]>> delivered, JsonGenerator out)
            throws IOException {
        out.writeArrayFieldStart("records");
        for (ConsumerRecord<byte[], byte[]> record : delivered) {
            out.writeStartObject();
            out.writeNumberField("offset", record.offset());
            out.writeNumberField("timestamp", record.timestamp());
            out.writeStringField("timestampType", record.timestampType().name);
            Answers.writeBytes(out, "key", record.key());
            Answers.writeBytes(out, "value", record.value());
            Answers.writeHeaders(out, record.headers());
            out.writeEndObject();
        }
        out.writeEndArray();
    }
}
