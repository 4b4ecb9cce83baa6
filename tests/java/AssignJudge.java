// SPDX-License-Identifier: Apache-2.0
package kcodec.judge;

import com.fasterxml.jackson.core.JsonGenerator;
import com.fasterxml.jackson.databind.JsonNode;
import com.fasterxml.jackson.databind.ObjectMapper;
import java.io.IOException;
import java.nio.ByteBuffer;
import java.nio.charset.StandardCharsets;
import java.util.ArrayList;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.Optional;
import java.util.Set;
import java.util.TreeSet;
import org.apache.kafka.clients.consumer.ConsumerGroupMetadata;
import org.apache.kafka.clients.consumer.ConsumerPartitionAssignor;
import org.apache.kafka.clients.consumer.ConsumerPartitionAssignor.Assignment;
import org.apache.kafka.clients.consumer.ConsumerPartitionAssignor.GroupSubscription;
import org.apache.kafka.clients.consumer.ConsumerPartitionAssignor.Subscription;
import org.apache.kafka.clients.consumer.CooperativeStickyAssignor;
import org.apache.kafka.clients.consumer.RangeAssignor;
import org.apache.kafka.clients.consumer.RoundRobinAssignor;
import org.apache.kafka.clients.consumer.StickyAssignor;
import org.apache.kafka.clients.consumer.internals.ConsumerProtocol;
import org.apache.kafka.common.Cluster;
import org.apache.kafka.common.Node;
import org.apache.kafka.common.PartitionInfo;
import org.apache.kafka.common.TopicPartition;

/**
 * What Kafka's assignors and its ConsumerProtocol make of groups.
 *
 * <p>A question: a JSON list of groups, each {@code assignor}, {@code topics}: name to a list of racks a partition,
 * {@code members}: {@code id}, {@code instance}, {@code topics}, {@code owned} as [topic, partition], {@code
 * generation}, {@code rack}, {@code user_data} in base64. An answer: {@code groups}, each {@code shares}, and by member
 * the bytes of its {@code subscriptions} and of its {@code assignments}, and the {@code user_data} that its assignor
 * sends once it was told its share, in the generation after.
 */
final class AssignJudge {
    private static final ObjectMapper JSON = new ObjectMapper();

    private AssignJudge() {}

    static void write(ByteBuffer question, JsonGenerator out) throws IOException {
        out.writeArrayFieldStart("groups");
        for (JsonNode group : JSON.readTree(StandardCharsets.UTF_8.decode(question).toString())) {
            out.writeStartObject();
            writeGroup(group, out);
            out.writeEndObject();
        }
        out.writeEndArray();
    }

    private static void writeGroup(JsonNode group, JsonGenerator out) throws IOException {
        Map<String, Subscription> subscriptions = new HashMap<>();
        out.writeObjectFieldStart("subscriptions");
        for (JsonNode member : group.get("members")) {
            Subscription subscription = subscription(member);
            subscriptions.put(member.get("id").asText(), subscription);
            writeBytes(out, member.get("id").asText(), ConsumerProtocol.serializeSubscription(subscription));
        }
        out.writeEndObject();
        String name = group.get("assignor").asText();
        Map<String, Assignment> shares = assignor(name)
                .assign(cluster(group.get("topics")), new GroupSubscription(subscriptions)).groupAssignment();
        out.writeObjectFieldStart("shares");
        for (Map.Entry<String, Assignment> share : shares.entrySet()) {
            out.writeArrayFieldStart(share.getKey());
            for (TopicPartition partition : share.getValue().partitions()) {
                out.writeStartArray();
                out.writeString(partition.topic());
                out.writeNumber(partition.partition());
                out.writeEndArray();
            }
            out.writeEndArray();
        }
        out.writeEndObject();
        out.writeObjectFieldStart("assignments");
        for (Map.Entry<String, Assignment> share : shares.entrySet()) {
            writeBytes(out, share.getKey(), ConsumerProtocol.serializeAssignment(share.getValue()));
        }
        out.writeEndObject();
        out.writeObjectFieldStart("user_data");
        for (JsonNode member : group.get("members")) {
            ConsumerPartitionAssignor told = assignor(name);
            String id = member.get("id").asText();
            told.onAssignment(shares.get(id), new ConsumerGroupMetadata("group", member.get("generation").asInt() + 1,
                    id, Optional.empty()));
            writeBytes(out, id, told.subscriptionUserData(new TreeSet<>(subscriptions.get(id).topics())));
        }
        out.writeEndObject();
    }

    private static void writeBytes(JsonGenerator out, String name, ByteBuffer bytes) throws IOException {
        if (bytes == null) {
            out.writeNullField(name);
        } else {
            byte[] copy = new byte[bytes.remaining()];
            bytes.duplicate().get(copy);
            out.writeBinaryField(name, copy);
        }
    }

    private static Subscription subscription(JsonNode member) throws IOException {
        List<String> topics = new ArrayList<>();
        member.get("topics").forEach(topic -> topics.add(topic.asText()));
        List<TopicPartition> owned = new ArrayList<>();
        member.get("owned").forEach(one -> owned.add(new TopicPartition(one.get(0).asText(), one.get(1).asInt())));
        JsonNode data = member.get("user_data");
        Subscription subscription = new Subscription(topics, data.isNull() ? null : ByteBuffer.wrap(data.binaryValue()),
                owned, member.get("generation").asInt(), text(member.get("rack")));
        subscription.setGroupInstanceId(text(member.get("instance")));
        return subscription;
    }

    private static Optional<String> text(JsonNode node) {
        return node.isNull() ? Optional.empty() : Optional.of(node.asText());
    }

    private static ConsumerPartitionAssignor assignor(String name) throws IOException {
        return switch (name) {
            case "range" -> new RangeAssignor();
            case "roundrobin" -> new RoundRobinAssignor();
            case "sticky" -> new StickyAssignor();
            case "cooperative-sticky" -> new CooperativeStickyAssignor();
            default -> throw new IOException("unknown assignor " + name);
        };
    }

    private static Cluster cluster(JsonNode topics) {
        List<PartitionInfo> partitions = new ArrayList<>();
        Map<String, Node> racks = new HashMap<>();
        topics.fields().forEachRemaining(topic -> {
            for (int number = 0; number < topic.getValue().size(); number++) {
                List<Node> replicas = new ArrayList<>();
                topic.getValue().get(number).forEach(rack -> replicas.add(racks.computeIfAbsent(rack.asText(),
                        name -> new Node(racks.size(), "host", 9092, name))));
                Node[] nodes = replicas.toArray(new Node[0]);
                Node leader = nodes.length == 0 ? Node.noNode() : nodes[0];
                partitions.add(new PartitionInfo(topic.getKey(), number, leader, nodes, nodes));
            }
        });
        return new Cluster("cluster", racks.values(), partitions, Set.of(), Set.of());
    }
}
