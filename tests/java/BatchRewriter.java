// SPDX-License-Identifier: Apache-2.0
package kcodec.judge;

import com.fasterxml.jackson.core.JsonGenerator;
import java.io.IOException;
import java.nio.ByteBuffer;
import org.apache.kafka.common.record.TimestampType;
import org.apache.kafka.common.record.internal.MemoryRecords;
import org.apache.kafka.common.record.internal.MemoryRecords.RecordFilter;
import org.apache.kafka.common.record.internal.MemoryRecords.RecordFilter.BatchRetention;
import org.apache.kafka.common.record.internal.MemoryRecords.RecordFilter.BatchRetentionResult;
import org.apache.kafka.common.record.internal.MutableRecordBatch;
import org.apache.kafka.common.record.internal.Record;
import org.apache.kafka.common.record.internal.RecordBatch;
import org.apache.kafka.common.record.internal.Records;
import org.apache.kafka.common.utils.internals.BufferSupplier;

/** Batches as Kafka changes them; every method writes the field {@code data}, or {@code error} where Kafka refuses. */
final class BatchRewriter {
    private BatchRewriter() {}

    /**
     * The setters of {@link MutableRecordBatch}, applied to every batch: int8 which, int64 value, bytes. Which: 0
     * setLastOffset, 1 setPartitionLeaderEpoch, 2 setMaxTimestamp with CreateTime, 3 with LogAppendTime.
     */
    static void set(ByteBuffer question, JsonGenerator out) throws IOException {
        byte which = question.get();
        long value = question.getLong();
        ByteBuffer data = question.slice();
        try {
            for (MutableRecordBatch batch : MemoryRecords.readableRecords(data).batches()) {
                switch (which) {
                    case 0 -> batch.setLastOffset(value);
                    case 1 -> batch.setPartitionLeaderEpoch((int) value);
                    case 2 -> batch.setMaxTimestamp(TimestampType.CREATE_TIME, value);
                    case 3 -> batch.setMaxTimestamp(TimestampType.LOG_APPEND_TIME, value);
                    default -> throw new IOException("unknown setter " + which);
                }
            }
        } catch (RuntimeException refused) {
            Answers.writeError(out, "error", refused);
            return;
        }
        Answers.writeBytes(out, "data", data);
    }

    /** What to do with each batch and record, in their order: the choices that a cleaner would make. */
    private static final class ToldFilter extends RecordFilter {
        private final ByteBuffer choices;

        ToldFilter(long now, long deleteRetentionMs, ByteBuffer choices) {
            super(now, deleteRetentionMs);
            this.choices = choices;
        }

        @Override
        protected BatchRetentionResult checkBatchRetention(RecordBatch batch) {
            BatchRetention retention = BatchRetention.values()[choices.get()];
            return new BatchRetentionResult(retention, choices.get() == 1);
        }

        @Override
        protected boolean shouldRetainRecord(RecordBatch batch, Record record) {
            return choices.get() == 1;
        }
    }

    /**
     * {@link MemoryRecords#filterTo}: int64 now, int64 delete_retention_ms, int32 n, n choices, bytes. A choice is one
     * byte: for each batch its retention (0 DELETE, 1 RETAIN_EMPTY, 2 DELETE_EMPTY) and whether it holds the marker of
     * an empty transaction, then, unless it is deleted, for each record whether it stays. Answer also: {@code
     * messagesRead}, {@code messagesRetained}, {@code maxOffset}.
     */
    static void filter(ByteBuffer question, JsonGenerator out) throws IOException {
        long now = question.getLong();
        long retention = question.getLong();
        int count = question.getInt();
        ByteBuffer choices = question.slice(question.position(), count);
        question.position(question.position() + count);
        MemoryRecords records = MemoryRecords.readableRecords(question.slice());
        // Room for everything: with less Kafka returns after the batch that did not fit, and its caller goes on behind.
        ByteBuffer room = ByteBuffer.allocate(4 * records.sizeInBytes() + (1 << 16));
        MemoryRecords.FilterResult result;
        try {
            result = records.filterTo(new ToldFilter(now, retention, choices), room, BufferSupplier.NO_CACHING,
                    Records.SOFT_MAX_ARRAY_LENGTH);
        } catch (RuntimeException refused) {
            Answers.writeError(out, "error", refused);
            return;
        }
        if (result.outputBuffer() != room) {
            throw new IOException("the room for filtered batches is too small");
        }
        Answers.writeBytes(out, "data", room.flip());
        out.writeNumberField("messagesRead", result.messagesRead());
        out.writeNumberField("messagesRetained", result.messagesRetained());
        out.writeNumberField("maxOffset", result.maxOffset());
    }
}
