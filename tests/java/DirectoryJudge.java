// SPDX-License-Identifier: Apache-2.0
package kcodec.judge;

import com.fasterxml.jackson.core.JsonGenerator;
import java.io.File;
import java.io.IOException;
import java.nio.ByteBuffer;
import java.nio.charset.StandardCharsets;
import java.util.Map;
import java.util.Optional;
import org.apache.kafka.common.record.internal.Record;
import org.apache.kafka.common.record.internal.RecordBatch;
import org.apache.kafka.common.utils.Time;
import org.apache.kafka.server.util.KafkaScheduler;
import org.apache.kafka.storage.internals.log.LogConfig;
import org.apache.kafka.storage.internals.log.LogDirFailureChannel;
import org.apache.kafka.storage.internals.log.LogSegment;
import org.apache.kafka.storage.internals.log.ProducerStateManagerConfig;
import org.apache.kafka.storage.internals.log.UnifiedLog;
import org.apache.kafka.storage.log.metrics.BrokerTopicStats;

/**
 * A partition directory as a broker finds it when it starts after it was killed: files are deleted and renamed.
 *
 * <p>A question: the directory's path. An answer: {@code segments}, each with its base offset and the offsets of its
 * records; {@code error} where the broker would not load it.
 */
final class DirectoryJudge {
    private DirectoryJudge() {}

    static void write(ByteBuffer question, JsonGenerator out) throws IOException {
        LogConfig config = new LogConfig(Map.of("cleanup.policy", "compact", "segment.index.bytes", "4096"));
        try (UnifiedLog log = open(question, config, false)) {
            writeSegments(log, out);
        } catch (RuntimeException refused) {
            Answers.writeError(out, "error", refused);
        }
    }

    /**
     * Where records of given timestamps are: int8 clean (it was closed in order: nothing is recovered), int32
     * index_interval_bytes, int32 n, n x int64 timestamp, then the path. An answer: {@code offsets}, null where there is
     * none. Recovery makes indexes and snapshots again; closing the log at the end writes one more.
     */
    static void writeOffsets(ByteBuffer question, JsonGenerator out) throws IOException {
        boolean clean = question.get() == 1;
        String interval = String.valueOf(question.getInt());
        long[] timestamps = new long[question.getInt()];
        for (int number = 0; number < timestamps.length; number++) {
            timestamps[number] = question.getLong();
        }
        try (UnifiedLog log = open(question, new LogConfig(Map.of("index.interval.bytes", interval)), clean)) {
            out.writeArrayFieldStart("offsets");
            for (long timestamp : timestamps) {
                var found = log.fetchOffsetByTimestamp(timestamp, Optional.empty()).timestampAndOffsetOpt();
                if (found.isPresent()) {
                    out.writeNumber(found.get().offset);
                } else {
                    out.writeNull();
                }
            }
            out.writeEndArray();
        }
    }

    private static UnifiedLog open(ByteBuffer question, LogConfig config, boolean clean) throws IOException {
        byte[] path = new byte[question.remaining()];
        question.get(path);
        return UnifiedLog.create(new File(new String(path, StandardCharsets.UTF_8)), config, 0L, 0L,
                new KafkaScheduler(1), new BrokerTopicStats(), Time.SYSTEM, Integer.MAX_VALUE,
                new ProducerStateManagerConfig(Integer.MAX_VALUE, false), Integer.MAX_VALUE,
                new LogDirFailureChannel(1), clean, Optional.empty());
    }

    private static void writeSegments(UnifiedLog log, JsonGenerator out) throws IOException {
        out.writeArrayFieldStart("segments");
        for (LogSegment segment : log.logSegments()) {
            out.writeStartObject();
            out.writeNumberField("baseOffset", segment.baseOffset());
            out.writeArrayFieldStart("records");
            for (RecordBatch batch : segment.log().batches()) {
                for (Record record : batch) {
                    out.writeStartArray();
                    out.writeNumber(record.offset());
                    out.writeBinary(value(record));
                    out.writeEndArray();
                }
            }
            out.writeEndArray();
            out.writeEndObject();
        }
        out.writeEndArray();
    }

    private static byte[] value(Record record) {
        byte[] copy = new byte[record.valueSize()];
        record.value().get(copy);
        return copy;
    }
}
