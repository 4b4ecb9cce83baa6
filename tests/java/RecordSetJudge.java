// SPDX-License-Identifier: Apache-2.0
package kcodec.judge;

import com.fasterxml.jackson.core.JsonGenerator;
import java.io.IOException;
import java.nio.ByteBuffer;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.Iterator;
import java.util.List;
import java.util.OptionalLong;
import org.apache.kafka.common.header.Header;
import org.apache.kafka.common.record.internal.ControlRecordType;
import org.apache.kafka.common.record.internal.DefaultRecordBatch;
import org.apache.kafka.common.record.internal.EndTransactionMarker;
import org.apache.kafka.common.record.internal.MemoryRecords;
import org.apache.kafka.common.record.internal.MutableRecordBatch;
import org.apache.kafka.common.record.internal.Record;
import org.apache.kafka.common.record.internal.RecordBatch;
import org.apache.kafka.common.utils.internals.BufferSupplier;
import org.apache.kafka.common.utils.internals.CloseableIterator;

/**
 * A record set as {@link MemoryRecords} walks it.
 *
 * <p>Answer: {@code batches}, each with its header fields as Kafka computes them, {@code isValid}, {@code records} and
 * {@code recordsError} where iterating them stopped; {@code error} where walking the batches stopped; {@code
 * validBytes}, the end of the last whole batch. A field that Kafka refuses to compute is null.
 */
final class RecordSetJudge {
    private RecordSetJudge() {}

    static void write(ByteBuffer data, JsonGenerator out) throws IOException {
        Throwable error = null;
        int position = 0;
        out.writeArrayFieldStart("batches");
        try {
            Iterator<MutableRecordBatch> batches = MemoryRecords.readableRecords(data).batches().iterator();
            while (batches.hasNext()) {
                MutableRecordBatch batch = batches.next();
                out.writeStartObject();
                out.writeNumberField("position", position);
                out.writeNumberField("size", batch.sizeInBytes());
                writeBatch(batch, out);
                out.writeEndObject();
                position += batch.sizeInBytes();
            }
        } catch (RuntimeException stopped) {
            error = stopped;
        }
        out.writeEndArray();
        out.writeNumberField("validBytes", position);
        if (error != null) {
            Answers.writeError(out, "error", error);
        }
    }

    private static void writeBatch(RecordBatch batch, JsonGenerator out) throws IOException {
        boolean readable = batch.magic() < RecordBatch.MAGIC_VALUE_V2
                || batch.sizeInBytes() >= DefaultRecordBatch.RECORD_BATCH_OVERHEAD;
        out.writeNumberField("magic", batch.magic());
        out.writeBooleanField("isValid", batch.isValid());
        try {
            batch.ensureValid();
        } catch (RuntimeException refused) {
            Answers.writeError(out, "invalid", refused);
        }
        if (!readable) {
            return; // its fields lie outside the batch
        }
        try {
            writeHeader(batch, out);
        } catch (RuntimeException | Error refused) { // the base offset of a legacy batch takes opening it, see below
            Answers.writeError(out, "headerError", refused);
            return;
        }
        writeRecords(batch, out);
    }

    private static void writeHeader(RecordBatch batch, JsonGenerator out) throws IOException {
        out.writeNumberField("baseOffset", batch.baseOffset());
        out.writeNumberField("lastOffset", batch.lastOffset());
        out.writeNumberField("nextOffset", batch.nextOffset());
        out.writeNumberField("partitionLeaderEpoch", batch.partitionLeaderEpoch());
        out.writeNumberField("crc", batch.checksum());
        String compression;
        try {
            compression = batch.compressionType().name;
        } catch (RuntimeException unknown) {
            compression = null;
        }
        out.writeStringField("compression", compression);
        out.writeStringField("timestampType", batch.timestampType().name);
        if (batch instanceof DefaultRecordBatch current) {
            out.writeNumberField("baseTimestamp", current.baseTimestamp());
        }
        out.writeNumberField("maxTimestamp", batch.maxTimestamp());
        OptionalLong horizon = batch.deleteHorizonMs();
        if (horizon.isPresent()) {
            out.writeNumberField("deleteHorizonMs", horizon.getAsLong());
        } else {
            out.writeNullField("deleteHorizonMs");
        }
        out.writeNumberField("producerId", batch.producerId());
        out.writeNumberField("producerEpoch", batch.producerEpoch());
        out.writeNumberField("baseSequence", batch.baseSequence());
        out.writeNumberField("lastSequence", batch.lastSequence());
        out.writeBooleanField("isTransactional", batch.isTransactional());
        out.writeBooleanField("isControlBatch", batch.isControlBatch());
        Integer count = batch.countOrNull();
        if (count == null) {
            out.writeNullField("recordsCount");
        } else {
            out.writeNumberField("recordsCount", count);
        }
    }

    /**
     * A record with everything read: legacy records look into their bytes only when asked, and may refuse then. Their
     * checksum is asked for as a consumer with check.crcs does.
     */
    private record ReadRecord(
            Record source, long offset, long timestamp, int sequence, ByteBuffer key, ByteBuffer value,
            List<Header> headers) {
        static ReadRecord of(Record record) {
            record.ensureValid();
            return new ReadRecord(record, record.offset(), record.timestamp(), record.sequence(), record.key(),
                    record.value(), Arrays.asList(record.headers()));
        }
    }

    private static void writeRecords(RecordBatch batch, JsonGenerator out) throws IOException {
        List<ReadRecord> records = new ArrayList<>();
        Throwable error = null;
        // Error: SnappyError is one, and OutOfMemoryError, from a length that Kafka believed; they are answers too.
        try (CloseableIterator<Record> iterator = batch.streamingIterator(BufferSupplier.NO_CACHING)) {
            while (iterator.hasNext()) {
                records.add(ReadRecord.of(iterator.next()));
            }
        } catch (RuntimeException | Error refused) {
            error = refused;
        }
        out.writeArrayFieldStart("records");
        for (ReadRecord record : records) {
            out.writeStartObject();
            out.writeNumberField("offset", record.offset());
            out.writeNumberField("timestamp", record.timestamp());
            out.writeNumberField("sequence", record.sequence());
            Answers.writeBytes(out, "key", record.key());
            Answers.writeBytes(out, "value", record.value());
            Answers.writeHeaders(out, record.headers());
            if (batch.isControlBatch()) {
                writeControl(record.source(), out);
            }
            out.writeEndObject();
        }
        out.writeEndArray();
        if (error != null) {
            Answers.writeError(out, "recordsError", error);
        }
    }

    private static void writeControl(Record record, JsonGenerator out) throws IOException {
        try {
            short id = ControlRecordType.parseTypeId(record.key());
            ControlRecordType type = ControlRecordType.fromTypeId(id);
            out.writeNumberField("controlTypeId", id);
            out.writeStringField("controlType", type.name());
            if (type == ControlRecordType.ABORT || type == ControlRecordType.COMMIT) {
                out.writeNumberField("coordinatorEpoch", EndTransactionMarker.deserialize(record).coordinatorEpoch());
            }
        } catch (RuntimeException refused) {
            Answers.writeError(out, "controlError", refused);
        }
    }
}
