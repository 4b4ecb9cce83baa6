// SPDX-License-Identifier: Apache-2.0
package kcodec.judge;

import com.fasterxml.jackson.core.JsonGenerator;
import java.io.File;
import java.io.IOException;
import java.nio.ByteBuffer;
import java.nio.file.Files;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.Optional;
import java.util.concurrent.ScheduledFuture;
import java.util.function.Supplier;
import org.apache.kafka.common.TopicPartition;
import org.apache.kafka.common.Uuid;
import org.apache.kafka.common.compress.Compression;
import org.apache.kafka.common.errors.TransactionalIdAuthorizationException;
import org.apache.kafka.common.message.ProduceRequestData;
import org.apache.kafka.common.protocol.Errors;
import org.apache.kafka.common.record.TimestampType;
import org.apache.kafka.common.record.internal.CompressionType;
import org.apache.kafka.common.record.internal.FileRecords;
import org.apache.kafka.common.record.internal.MemoryRecords;
import org.apache.kafka.common.record.internal.RecordBatch;
import org.apache.kafka.common.requests.ProduceRequest;
import org.apache.kafka.common.requests.ProduceResponse.RecordError;
import org.apache.kafka.common.requests.RequestUtils;
import org.apache.kafka.common.utils.internals.BufferSupplier;
import org.apache.kafka.common.utils.internals.PrimitiveRef;
import org.apache.kafka.common.utils.Time;
import org.apache.kafka.server.common.RequestLocal;
import org.apache.kafka.server.record.BrokerCompressionType;
import org.apache.kafka.server.util.Scheduler;
import org.apache.kafka.storage.internals.log.AppendOrigin;
import org.apache.kafka.storage.internals.log.LogConfig;
import org.apache.kafka.storage.internals.log.LogDirFailureChannel;
import org.apache.kafka.storage.internals.log.LogSegment;
import org.apache.kafka.storage.internals.log.LogValidator;
import org.apache.kafka.storage.internals.log.ProducerStateManagerConfig;
import org.apache.kafka.storage.internals.log.RecordValidationException;
import org.apache.kafka.storage.internals.log.UnifiedLog;
import org.apache.kafka.storage.internals.log.VerificationGuard;
import org.apache.kafka.storage.log.metrics.BrokerTopicStats;

/**
 * What a leader makes of a produced record set, for one partition without a past.
 *
 * <p>A question: int8 origin (0 client, 1 coordinator), int16 api_version, int8 has_transactional_id, int8 compacted,
 * int8 log_append_time, int64 before_max_ms, int64 after_max_ms, int64 now, int32 max_message_bytes, int32
 * segment_bytes, int8 codec of the topic (-1: the producer's), bytes. An answer: {@code code} and {@code name} of
 * Kafka's error (0, NONE), {@code recordErrors} as pairs of index and text, {@code error}; {@code data}, what the log
 * then holds.
 */
final class ProduceJudge {
    private static final TopicPartition PARTITION = new TopicPartition("judged", 0);
    private static final String DIRECTORY = "kcodec.judge.directory";

    private final Clock clock = new Clock();
    private UnifiedLog log;

    private record Settings(AppendOrigin origin, short version, boolean hasTransactionalId, boolean compacted,
            TimestampType timestampType, long beforeMaxMs, long afterMaxMs, long now, int maxMessageBytes,
            int segmentBytes, Optional<Compression> compression) {
        static Settings read(ByteBuffer question) {
            AppendOrigin origin = question.get() == 0 ? AppendOrigin.CLIENT : AppendOrigin.COORDINATOR;
            short version = question.getShort();
            boolean hasTransactionalId = question.get() == 1;
            boolean compacted = question.get() == 1;
            TimestampType type = question.get() == 1 ? TimestampType.LOG_APPEND_TIME : TimestampType.CREATE_TIME;
            long before = question.getLong();
            long after = question.getLong();
            long now = question.getLong();
            int maxMessageBytes = question.getInt();
            int segmentBytes = question.getInt();
            byte codec = question.get();
            return new Settings(origin, version, hasTransactionalId, compacted, type, before, after, now,
                    maxMessageBytes, segmentBytes, codec < 0 ? Optional.empty()
                            : Optional.of(Compression.of(CompressionType.forId(codec)).build()));
        }

        LogConfig logConfig() {
            Map<String, String> told = new HashMap<>();
            told.put("cleanup.policy", compacted ? "compact" : "delete");
            told.put("message.timestamp.type", timestampType.name);
            told.put("message.timestamp.before.max.ms", Long.toString(beforeMaxMs));
            told.put("message.timestamp.after.max.ms", Long.toString(afterMaxMs));
            told.put("max.message.bytes", Integer.toString(maxMessageBytes));
            told.put("internal.segment.bytes", Integer.toString(segmentBytes));
            told.put("segment.index.bytes", "4096");
            told.put("compression.type", compression.map(codec -> codec.type() == CompressionType.NONE ? "uncompressed"
                    : codec.type().name).orElse("producer"));
            return new LogConfig(told);
        }
    }

    /** {@link LogValidator} alone, which assigns offsets from 0 on and the leader epoch 0. */
    void validate(ByteBuffer question, JsonGenerator out) throws IOException {
        Settings settings = Settings.read(question);
        clock.now = settings.now();
        MemoryRecords records = MemoryRecords.readableRecords(question.slice());
        try {
            CompressionType source = CompressionType.NONE;
            for (RecordBatch batch : records.batches()) {
                source = batch.compressionType() == CompressionType.NONE ? source : batch.compressionType();
            }
            LogValidator validator = new LogValidator(records, PARTITION, clock, source,
                    BrokerCompressionType.targetCompression(settings.compression(), source), settings.compacted(),
                    RecordBatch.CURRENT_MAGIC_VALUE, settings.timestampType(), settings.beforeMaxMs(),
                    settings.afterMaxMs(), 0, settings.origin());
            LogValidator.ValidationResult result = validator.validateMessagesAndAssignOffsets(PrimitiveRef.ofLong(0),
                    UnifiedLog.newValidatorMetricsRecorder(new BrokerTopicStats().allTopicsStats()),
                    BufferSupplier.NO_CACHING);
            writeAccepted(out, result.validatedRecords().buffer());
        } catch (RuntimeException | Error refused) {
            writeRefused(out, refused);
        }
    }

    /** The way of a produce request: the checks of the request, then of {@link UnifiedLog#appendAsLeader}. */
    void append(ByteBuffer question, JsonGenerator out) throws IOException {
        Settings settings = Settings.read(question);
        clock.now = settings.now();
        MemoryRecords records = MemoryRecords.readableRecords(question.slice());
        openLog(settings.logConfig());
        try {
            if (settings.origin() == AppendOrigin.CLIENT) {
                checkRequest(settings, records);
            }
            log.appendAsLeader(records, 0, settings.origin(), RequestLocal.noCaching(), VerificationGuard.SENTINEL,
                    (short) 0);
            writeAccepted(out, readLog());
        } catch (RuntimeException | Error refused) {
            writeRefused(out, refused);
        }
        log.truncateFullyAndStartAt(0L, Optional.empty());
    }

    private static void checkRequest(Settings settings, MemoryRecords records) {
        ProduceRequestData data = new ProduceRequestData().setAcks((short) -1);
        ProduceRequestData.TopicProduceData topic = new ProduceRequestData.TopicProduceData().setName("judged");
        topic.partitionData().add(new ProduceRequestData.PartitionProduceData().setIndex(0).setRecords(records));
        data.topicData().add(topic);
        ProduceRequest request = new ProduceRequest(data, settings.version());
        if (RequestUtils.hasTransactionalRecords(request) && !settings.hasTransactionalId()) {
            throw new TransactionalIdAuthorizationException("the request names no transactional id");
        }
        ProduceRequest.validateRecords(settings.version(), records);
    }

    private void openLog(LogConfig config) throws IOException {
        if (log != null) {
            log.updateConfig(config);
            return;
        }
        File parent = new File(System.getProperty(DIRECTORY));
        File directory = Files.createDirectory(parent.toPath().resolve(PARTITION.toString())).toFile();
        log = UnifiedLog.create(directory, config, 0L, 0L, new InlineScheduler(), new BrokerTopicStats(), clock,
                Integer.MAX_VALUE, new ProducerStateManagerConfig(Integer.MAX_VALUE, false), Integer.MAX_VALUE,
                new LogDirFailureChannel(1), true, Optional.of(Uuid.ONE_UUID));
    }

    private ByteBuffer readLog() throws IOException {
        List<LogSegment> segments = log.logSegments();
        FileRecords last = segments.get(segments.size() - 1).log();
        ByteBuffer bytes = ByteBuffer.allocate(last.sizeInBytes());
        last.readInto(bytes, 0);
        return bytes;
    }

    private static void writeAccepted(JsonGenerator out, ByteBuffer data) throws IOException {
        out.writeNumberField("code", Errors.NONE.code());
        out.writeStringField("name", Errors.NONE.name());
        Answers.writeBytes(out, "data", data);
    }

    private static void writeRefused(JsonGenerator out, Throwable refused) throws IOException {
        Throwable telling = refused instanceof RecordValidationException validation ? validation.invalidException() : refused;
        Errors error = Errors.forException(telling);
        out.writeNumberField("code", error.code());
        out.writeStringField("name", error.name());
        Answers.writeError(out, "error", telling);
        if (refused instanceof RecordValidationException validation) {
            out.writeArrayFieldStart("recordErrors");
            for (RecordError record : validation.recordErrors()) {
                out.writeStartArray();
                out.writeNumber(record.batchIndex);
                out.writeString(record.message);
                out.writeEndArray();
            }
            out.writeEndArray();
        }
    }

    /** The time a question says it is. */
    private static final class Clock implements Time {
        private long now;

        @Override
        public long milliseconds() {
            return now;
        }

        @Override
        public long nanoseconds() {
            return now * 1_000_000;
        }

        @Override
        public void sleep(long ms) {
            now += ms;
        }

        @Override
        public void waitObject(Object object, Supplier<Boolean> condition, long deadlineMs) {
            throw new UnsupportedOperationException("nobody waits here");
        }
    }

    /** Does at once what a broker does later, and never what it does again and again. */
    private static final class InlineScheduler implements Scheduler {
        @Override
        public void startup() {}

        @Override
        public void shutdown() {}

        @Override
        public ScheduledFuture<?> schedule(String name, Runnable task, long delayMs, long periodMs) {
            if (periodMs < 0) {
                task.run();
            }
            return null;
        }

        @Override
        public void resizeThreadPool(int size) {}
    }
}
