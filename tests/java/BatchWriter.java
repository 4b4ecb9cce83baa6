// SPDX-License-Identifier: Apache-2.0
package kcodec.judge;

import com.fasterxml.jackson.core.JsonGenerator;
import java.io.IOException;
import java.nio.ByteBuffer;
import java.nio.charset.StandardCharsets;
import org.apache.kafka.common.compress.Compression;
import org.apache.kafka.common.header.Header;
import org.apache.kafka.common.header.internals.RecordHeader;
import org.apache.kafka.common.record.TimestampType;
import org.apache.kafka.common.record.internal.CompressionType;
import org.apache.kafka.common.record.internal.ControlRecordType;
import org.apache.kafka.common.record.internal.DefaultRecordBatch;
import org.apache.kafka.common.record.internal.EndTransactionMarker;
import org.apache.kafka.common.record.internal.MemoryRecords;
import org.apache.kafka.common.record.internal.MemoryRecordsBuilder;
import org.apache.kafka.common.record.internal.RecordBatch;
import org.apache.kafka.common.record.internal.SimpleRecord;
import org.apache.kafka.common.utils.internals.ByteBufferOutputStream;

/** Batches as Kafka's own writers make them; every method writes the field {@code data} in base64. */
final class BatchWriter {
    private BatchWriter() {}

    /**
     * {@link MemoryRecordsBuilder}: int8 codec, int32 level ({@code Integer.MIN_VALUE}: the codec's own default), int8
     * log_append_time, int8 transactional, int8 control, int64 base_offset, int64 last_offset, int64 append_time, int64
     * delete_horizon (-1 none), int64 producer_id, int16 producer_epoch, int32 base_sequence, int32 leader_epoch, int32
     * n, n records: int64 offset, int64 timestamp, key, value, int32 h, h x (name, value), where bytes are an int32
     * length, -1 for null, and as many bytes. What Kafka's writer refuses is an {@code error}.
     */
    static void writeBatch(ByteBuffer question, JsonGenerator out) throws IOException {
        try {
            Answers.writeBytes(out, "data", build(question).buffer());
        } catch (RuntimeException refused) {
            Answers.writeError(out, "error", refused);
        }
    }

    private static MemoryRecords build(ByteBuffer question) {
        Compression compression = compression(CompressionType.forId(question.get()), question.getInt());
        TimestampType type = question.get() == 1 ? TimestampType.LOG_APPEND_TIME : TimestampType.CREATE_TIME;
        boolean transactional = question.get() == 1;
        boolean control = question.get() == 1;
        long baseOffset = question.getLong();
        long lastOffset = question.getLong();
        long appendTime = question.getLong();
        long deleteHorizon = question.getLong();
        MemoryRecordsBuilder builder = new MemoryRecordsBuilder(new ByteBufferOutputStream(1024),
                RecordBatch.MAGIC_VALUE_V2, compression, type, baseOffset, appendTime, question.getLong(),
                question.getShort(), question.getInt(), transactional, control, question.getInt(), Integer.MAX_VALUE,
                deleteHorizon);
        for (int left = question.getInt(); left > 0; left--) {
            long offset = question.getLong();
            SimpleRecord record = readRecord(question);
            if (control) {
                builder.appendControlRecordWithOffset(offset, record);
            } else {
                builder.appendWithOffset(offset, record);
            }
        }
        builder.overrideLastOffset(lastOffset);
        return builder.build();
    }

    private static SimpleRecord readRecord(ByteBuffer question) {
        long timestamp = question.getLong();
        byte[] key = readBytes(question);
        byte[] value = readBytes(question);
        Header[] headers = new Header[question.getInt()];
        for (int i = 0; i < headers.length; i++) {
            String name = new String(readBytes(question), StandardCharsets.UTF_8);
            headers[i] = new RecordHeader(name, readBytes(question));
        }
        return new SimpleRecord(timestamp, key, value, headers);
    }

    private static Compression compression(CompressionType type, int level) {
        if (level == Integer.MIN_VALUE) {
            return Compression.of(type).build();
        }
        return switch (type) {
            case GZIP -> Compression.gzip().level(level).build();
            case LZ4 -> Compression.lz4().level(level).build();
            case ZSTD -> Compression.zstd().level(level).build();
            default -> throw new IllegalArgumentException(type + " has no levels");
        };
    }

    /**
     * {@link MemoryRecords#withEndTransactionMarker}: int64 offset, int64 timestamp, int32 leader_epoch, int64
     * producer_id, int16 producer_epoch, int16 control_type, int32 coordinator_epoch.
     */
    static void writeMarker(ByteBuffer question, JsonGenerator out) throws IOException {
        long offset = question.getLong();
        long timestamp = question.getLong();
        int leaderEpoch = question.getInt();
        long producerId = question.getLong();
        short producerEpoch = question.getShort();
        ControlRecordType type = ControlRecordType.fromTypeId(question.getShort());
        EndTransactionMarker marker = new EndTransactionMarker(type, question.getInt());
        MemoryRecords records = MemoryRecords.withEndTransactionMarker(
                offset, timestamp, leaderEpoch, producerId, producerEpoch, marker);
        Answers.writeBytes(out, "data", records.buffer());
    }

    /**
     * {@link DefaultRecordBatch#writeEmptyHeader}, what the cleaner keeps of an emptied batch: int8 transactional,
     * int8 control, int8 log_append_time, int64 base_offset, int64 last_offset, int64 max_timestamp, int64 producer_id, int16
     * producer_epoch, int32 base_sequence, int32 leader_epoch.
     */
    static void writeEmpty(ByteBuffer question, JsonGenerator out) throws IOException {
        boolean transactional = question.get() == 1;
        boolean control = question.get() == 1;
        TimestampType type = question.get() == 1 ? TimestampType.LOG_APPEND_TIME : TimestampType.CREATE_TIME;
        long baseOffset = question.getLong();
        long lastOffset = question.getLong();
        long maxTimestamp = question.getLong();
        ByteBuffer buffer = ByteBuffer.allocate(DefaultRecordBatch.RECORD_BATCH_OVERHEAD);
        long producerId = question.getLong();
        short producerEpoch = question.getShort();
        int baseSequence = question.getInt();
        int leaderEpoch = question.getInt();
        DefaultRecordBatch.writeEmptyHeader(buffer, RecordBatch.MAGIC_VALUE_V2, producerId, producerEpoch, baseSequence,
                baseOffset, lastOffset, leaderEpoch, type, maxTimestamp, transactional, control);
        Answers.writeBytes(out, "data", buffer.flip());
    }

    static byte[] readBytes(ByteBuffer question) {
        int length = question.getInt();
        if (length < 0) {
            return null;
        }
        byte[] bytes = new byte[length];
        question.get(bytes);
        return bytes;
    }
}
