// SPDX-License-Identifier: Apache-2.0
package kcodec.judge;

import com.fasterxml.jackson.core.JsonGenerator;
import java.io.IOException;
import java.nio.ByteBuffer;
import java.util.List;
import java.util.Map;
import java.util.Optional;
import java.util.concurrent.TimeUnit;
import org.apache.kafka.common.TopicPartition;
import org.apache.kafka.common.config.AbstractConfig;
import org.apache.kafka.common.message.ListGroupsResponseData.ListedGroup;
import org.apache.kafka.common.message.OffsetFetchRequestData.OffsetFetchRequestGroup;
import org.apache.kafka.common.message.OffsetFetchResponseData.OffsetFetchResponsePartitions;
import org.apache.kafka.common.message.OffsetFetchResponseData.OffsetFetchResponseTopics;
import org.apache.kafka.common.record.internal.ControlRecordType;
import org.apache.kafka.common.record.internal.MemoryRecords;
import org.apache.kafka.common.record.internal.Record;
import org.apache.kafka.common.record.internal.RecordBatch;
import org.apache.kafka.common.requests.TransactionResult;
import org.apache.kafka.common.utils.internals.LogContext;
import org.apache.kafka.common.utils.Time;
import org.apache.kafka.coordinator.common.runtime.CoordinatorExecutor;
import org.apache.kafka.coordinator.common.runtime.CoordinatorRecord;
import org.apache.kafka.coordinator.common.runtime.CoordinatorTimer;
import org.apache.kafka.coordinator.group.GroupConfigManager;
import org.apache.kafka.coordinator.group.GroupCoordinatorConfig;
import org.apache.kafka.coordinator.group.GroupCoordinatorRecordSerde;
import org.apache.kafka.coordinator.group.GroupCoordinatorShard;
import org.apache.kafka.coordinator.group.metrics.GroupCoordinatorMetrics;
import org.apache.kafka.coordinator.group.modern.share.ShareGroupConfig;
import org.apache.kafka.server.config.AbstractKafkaConfig;
import org.apache.kafka.timeline.SnapshotRegistry;

/**
 * What the group coordinator knows once it has replayed a partition of {@code __consumer_offsets}.
 *
 * <p>A question: the log's bytes. An answer: {@code groups}, by name their {@code offsets} as [topic, partition, offset]
 * and those of them that are {@code unstable}, as a transaction is open over them.
 */
final class GroupJudge {
    private static final long REPLAYED = 1;

    private GroupJudge() {}

    static void write(ByteBuffer question, JsonGenerator out) throws IOException {
        SnapshotRegistry registry = new SnapshotRegistry(new LogContext());
        GroupCoordinatorShard shard = shard(registry);
        GroupCoordinatorRecordSerde serde = new GroupCoordinatorRecordSerde();
        for (RecordBatch batch : MemoryRecords.readableRecords(question.slice()).batches()) {
            for (Record record : batch) {
                if (batch.isControlBatch()) {
                    boolean isCommit = ControlRecordType.parse(record.key()) == ControlRecordType.COMMIT;
                    shard.replayEndTransactionMarker(batch.producerId(), batch.producerEpoch(),
                            isCommit ? TransactionResult.COMMIT : TransactionResult.ABORT);
                } else {
                    shard.replay(record.offset(), batch.producerId(), batch.producerEpoch(),
                            serde.deserialize(record.key(), record.value()));
                }
            }
        }
        registry.idempotentCreateSnapshot(REPLAYED);
        out.writeObjectFieldStart("groups");
        for (ListedGroup group : shard.listGroups(List.of(), List.of(), REPLAYED)) {
            out.writeObjectFieldStart(group.groupId());
            out.writeStringField("protocolType", group.protocolType());
            writeOffsets(shard, group.groupId(), "offsets", REPLAYED, out);
            writeOffsets(shard, group.groupId(), "unstable", Long.MAX_VALUE, out);
            out.writeEndObject();
        }
        out.writeEndObject();
    }

    private static void writeOffsets(GroupCoordinatorShard shard, String group, String name, long epoch,
            JsonGenerator out) throws IOException {
        OffsetFetchRequestGroup asked = new OffsetFetchRequestGroup().setGroupId(group).setTopics(null);
        out.writeArrayFieldStart(name);
        for (OffsetFetchResponseTopics topic : shard.fetchOffsets(asked, epoch).topics()) {
            for (OffsetFetchResponsePartitions partition : topic.partitions()) {
                if ((epoch == REPLAYED) == (partition.errorCode() == 0)) {
                    out.writeStartArray();
                    out.writeString(topic.name());
                    out.writeNumber(partition.partitionIndex());
                    out.writeNumber(partition.committedOffset());
                    out.writeEndArray();
                }
            }
        }
        out.writeEndArray();
    }

    private static GroupCoordinatorShard shard(SnapshotRegistry registry) {
        GroupCoordinatorConfig config = GroupCoordinatorConfig.fromProps(Map.of());
        ShareGroupConfig shares = new ShareGroupConfig(new AbstractConfig(AbstractKafkaConfig.CONFIG_DEF, Map.of("process.roles", "broker",
                "node.id", "1", "controller.listener.names", "C", "controller.quorum.voters", "2@localhost:1")));
        return new GroupCoordinatorShard.Builder(config, new GroupConfigManager(config, shares))
                .withAuthorizerPlugin(Optional.empty())
                .withLogContext(new LogContext())
                .withTime(Time.SYSTEM)
                .withTimer(new NoTimer())
                .withExecutor(new NoExecutor())
                .withSnapshotRegistry(registry)
                .withCoordinatorMetrics(new GroupCoordinatorMetrics())
                .withTopicPartition(new TopicPartition("__consumer_offsets", 0))
                .build();
    }

    /** Nothing happens later here. */
    private static final class NoTimer implements CoordinatorTimer<CoordinatorRecord> {
        @Override
        public void schedule(String key, long delay, TimeUnit unit, boolean retry,
                TimeoutOperation<CoordinatorRecord> operation) {}

        @Override
        public void schedule(String key, long delay, TimeUnit unit, boolean retry, long retryBackoff,
                TimeoutOperation<CoordinatorRecord> operation) {}

        @Override
        public void scheduleIfAbsent(String key, long delay, TimeUnit unit, boolean retry,
                TimeoutOperation<CoordinatorRecord> operation) {}

        @Override
        public void cancel(String key) {}

        @Override
        public boolean isScheduled(String key) {
            return false;
        }
    }

    private static final class NoExecutor implements CoordinatorExecutor<CoordinatorRecord> {
        @Override
        public <R> boolean schedule(String key, TaskRunnable<R> task, TaskOperation<CoordinatorRecord, R> operation) {
            return false;
        }

        @Override
        public void cancel(String key) {}

        @Override
        public boolean isScheduled(String key) {
            return false;
        }
    }
}
