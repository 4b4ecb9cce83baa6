// SPDX-License-Identifier: Apache-2.0
package org.apache.kafka.clients.consumer.internals;

import java.io.ByteArrayOutputStream;
import java.nio.ByteBuffer;
import java.util.ArrayList;
import java.util.List;

import org.apache.kafka.common.compress.Compression;
import org.apache.kafka.common.header.Header;
import org.apache.kafka.common.record.TimestampType;
import org.apache.kafka.common.record.internal.MemoryRecords;
import org.apache.kafka.common.record.internal.MemoryRecordsBuilder;
import org.apache.kafka.common.record.internal.MutableRecordBatch;
import org.apache.kafka.common.record.internal.Record;
import org.apache.kafka.common.utils.Utils;

/**
 * Records to batches by MemoryRecordsBuilder, each codec at its default level, into a buffer that is used again as the
 * producer's pool does. The records are byte arrays before the clock starts.
 */
final class BatchEncoding {
    private record Row(long timestamp, byte[] key, byte[] value, Header[] headers) { }

    private final List<List<Row>> batches = new ArrayList<>();
    private final ByteBuffer buffer;
    private int records = 0;

    BatchEncoding(byte[] data) {
        int largest = 0;
        for (MutableRecordBatch batch : MemoryRecords.readableRecords(ByteBuffer.wrap(data)).batches()) {
            List<Row> rows = new ArrayList<>();
            for (Record record : batch) {
                byte[] key = record.hasKey() ? Utils.toArray(record.key()) : null;
                byte[] value = record.hasValue() ? Utils.toArray(record.value()) : null;
                for (Header header : record.headers()) {
                    header.key();  // a header read from bytes makes its fields when they are first asked for
                    header.value();
                }
                rows.add(new Row(record.timestamp(), key, value, record.headers()));
            }
            batches.add(rows);
            records += rows.size();
            largest = Math.max(largest, batch.sizeInBytes());
        }
        buffer = ByteBuffer.allocate(2 * largest + 4096);
    }

    private ByteBuffer encode(List<Row> rows, Compression compression) {
        buffer.clear();
        MemoryRecordsBuilder builder = new MemoryRecordsBuilder(buffer, (byte) 2, compression, TimestampType.CREATE_TIME,
            0L, -1L, -1L, (short) -1, -1, false, false, -1, Integer.MAX_VALUE);
        for (Row row : rows) {
            builder.append(row.timestamp, row.key, row.value, row.headers);
        }
        return builder.build().buffer();
    }

    String time(String codec, long milliseconds) {
        Compression compression = Compression.of(codec).build();
        long begin = System.nanoTime();
        long spent;
        long calls = 0;
        do {
            for (List<Row> rows : batches) {
                encode(rows, compression);
            }
            calls++;
            spent = System.nanoTime() - begin;
        } while (spent < milliseconds * 1_000_000L);
        return spent / (double) calls + " " + records;
    }

    byte[] made(String codec) {
        Compression compression = Compression.of(codec).build();
        ByteArrayOutputStream all = new ByteArrayOutputStream();
        for (List<Row> rows : batches) {
            all.writeBytes(Utils.toArray(encode(rows, compression)));
        }
        return all.toByteArray();
    }
}
