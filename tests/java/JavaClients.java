// SPDX-License-Identifier: Apache-2.0
package kcodec.clients;

import com.fasterxml.jackson.databind.JsonNode;
import com.fasterxml.jackson.databind.ObjectMapper;
import com.fasterxml.jackson.databind.node.ArrayNode;
import com.fasterxml.jackson.databind.node.ObjectNode;
import java.io.BufferedReader;
import java.io.IOException;
import java.io.InputStreamReader;
import java.io.PrintStream;
import java.nio.charset.StandardCharsets;
import java.util.ArrayList;
import java.util.HashMap;
import java.util.HashSet;
import java.util.List;
import java.util.Map;
import java.util.Optional;
import java.util.Properties;
import java.util.Set;
import java.util.concurrent.ExecutionException;
import java.util.concurrent.Future;
import org.apache.kafka.clients.admin.Admin;
import org.apache.kafka.clients.admin.NewPartitionReassignment;
import org.apache.kafka.clients.consumer.ConsumerGroupMetadata;
import org.apache.kafka.clients.consumer.OffsetAndMetadata;
import org.apache.kafka.clients.producer.KafkaProducer;
import org.apache.kafka.clients.producer.ProducerRecord;
import org.apache.kafka.clients.producer.RecordMetadata;
import org.apache.kafka.common.ElectionType;
import org.apache.kafka.common.TopicPartition;
import org.apache.kafka.common.errors.ElectionNotNeededException;
import org.apache.kafka.common.serialization.ByteArraySerializer;
import org.apache.kafka.common.utils.internals.AppInfoParser;

/**
 * Kafka's own clients, driven from outside: a JSON object a line on standard input, one on standard output.
 *
 * <p>{@code {"command": ...}} is one of
 *
 * <ul>
 *   <li>{@code version}
 *   <li>{@code consume}: {@code properties}, {@code topics}, {@code digest}, {@code timeout_ms} ({@link Consumption})
 *   <li>{@code producer}: {@code name}, {@code properties}: makes one, kept under that name
 *   <li>{@code send}: {@code name}, {@code records} as [topic, partition or null, key, value]: waits for all, gives
 *       {@code offsets}
 *   <li>{@code call}: {@code name}, {@code method}: init, begin, commit, abort, flush, close
 *   <li>{@code send_offsets}: {@code name}, {@code group}, {@code offsets} as [topic, partition, offset]
 *   <li>{@code move_leader}: {@code properties}, {@code topic}, {@code partition}, {@code replicas}: the order of the
 *       replicas, then an election of the first of them
 *   <li>{@code cluster}: {@code properties}: the ids of the nodes, after logging in as they say
 *   <li>{@code member}: {@code name}, {@code properties}, {@code topics} or {@code pattern}: a {@link GroupMember} that
 *       polls; {@code member_state}: {@code name}; {@code member_stop}: {@code name}, {@code leave}; {@code member_close}
 * </ul>
 *
 * <p>Bytes are base64 as Jackson writes them. An exception of Kafka's is an answer, {@code {"error": class, "message":
 * ...}}; one of this program's ends it.
 */
public final class JavaClients {
    private final ObjectMapper json = new ObjectMapper();
    private final Map<String, KafkaProducer<byte[], byte[]>> producers = new HashMap<>();
    private final Map<String, GroupMember> members = new HashMap<>();

    private JavaClients() {}

    public static void main(String[] arguments) throws Exception {
        PrintStream answers = new PrintStream(System.out, false, StandardCharsets.UTF_8);
        System.setOut(System.err); // a library that prints must not spoil the answers
        BufferedReader questions = new BufferedReader(new InputStreamReader(System.in, StandardCharsets.UTF_8));
        JavaClients clients = new JavaClients();
        for (String line = questions.readLine(); line != null; line = questions.readLine()) {
            answers.println(clients.json.writeValueAsString(clients.answer(clients.json.readTree(line))));
            answers.flush();
        }
        System.exit(0); // producers may have threads that wait for a broker that is gone
    }

    private ObjectNode answer(JsonNode question) throws Exception {
        ObjectNode answer = json.createObjectNode();
        try {
            carryOut(question, answer);
        } catch (ExecutionException failed) {
            describe(failed.getCause(), answer);
        } catch (RuntimeException failed) {
            describe(failed, answer);
        }
        return answer;
    }

    private static void describe(Throwable error, ObjectNode answer) {
        answer.put("error", error.getClass().getSimpleName()).put("message", String.valueOf(error.getMessage()));
    }

    private void carryOut(JsonNode question, ObjectNode answer) throws Exception {
        switch (question.get("command").asText()) {
            case "version" -> answer.put("version", AppInfoParser.getVersion());
            case "consume" -> new Consumption(question).write(properties(question), answer);
            case "producer" -> producers.put(question.get("name").asText(),
                    new KafkaProducer<>(properties(question), new ByteArraySerializer(), new ByteArraySerializer()));
            case "send" -> send(producer(question), question.get("records"), answer.putArray("offsets"));
            case "call" -> call(producer(question), question);
            case "send_offsets" -> sendOffsets(producer(question), question);
            case "move_leader" -> moveLeader(question);
            case "cluster" -> cluster(question, answer.putArray("nodes"));
            case "member" -> members.put(question.get("name").asText(),
                    new GroupMember(question, properties(question)));
            case "member_state" -> members.get(question.get("name").asText()).state(answer);
            case "member_stop" -> members.get(question.get("name").asText())
                    .close(question.get("leave").asBoolean());
            case "member_close" -> members.remove(question.get("name").asText()).close(true);
            default -> throw new IOException("unknown command " + question);
        }
    }

    private KafkaProducer<byte[], byte[]> producer(JsonNode question) {
        return Optional.ofNullable(producers.get(question.get("name").asText())).orElseThrow();
    }

    private static Properties properties(JsonNode question) {
        Properties properties = new Properties();
        question.get("properties").fields().forEachRemaining(
                entry -> properties.put(entry.getKey(), entry.getValue().asText()));
        return properties;
    }

    private static void send(KafkaProducer<byte[], byte[]> producer, JsonNode records, ArrayNode offsets)
            throws Exception {
        List<Future<RecordMetadata>> sent = new ArrayList<>();
        for (JsonNode record : records) {
            Integer partition = record.get(1).isNull() ? null : record.get(1).asInt();
            sent.add(producer.send(new ProducerRecord<>(record.get(0).asText(), partition, bytes(record.get(2)),
                    bytes(record.get(3)))));
        }
        for (Future<RecordMetadata> future : sent) {
            offsets.add(future.get().offset());
        }
    }

    private static byte[] bytes(JsonNode node) throws IOException {
        return node.isNull() ? null : node.binaryValue();
    }

    private void call(KafkaProducer<byte[], byte[]> producer, JsonNode question) throws IOException {
        switch (question.get("method").asText()) {
            case "init" -> producer.initTransactions();
            case "begin" -> producer.beginTransaction();
            case "commit" -> producer.commitTransaction();
            case "abort" -> producer.abortTransaction();
            case "flush" -> producer.flush();
            case "close" -> producers.remove(question.get("name").asText()).close();
            default -> throw new IOException("unknown method " + question);
        }
    }

    private static void sendOffsets(KafkaProducer<byte[], byte[]> producer, JsonNode question) {
        Map<TopicPartition, OffsetAndMetadata> offsets = new HashMap<>();
        for (JsonNode offset : question.get("offsets")) {
            offsets.put(new TopicPartition(offset.get(0).asText(), offset.get(1).asInt()),
                    new OffsetAndMetadata(offset.get(2).asLong()));
        }
        producer.sendOffsetsToTransaction(offsets, new ConsumerGroupMetadata(question.get("group").asText()));
    }

    private static void moveLeader(JsonNode question) throws Exception {
        TopicPartition partition = new TopicPartition(question.get("topic").asText(),
                question.get("partition").asInt());
        List<Integer> replicas = new ArrayList<>();
        question.get("replicas").forEach(node -> replicas.add(node.asInt()));
        try (Admin admin = Admin.create(properties(question))) {
            admin.alterPartitionReassignments(
                    Map.of(partition, Optional.of(new NewPartitionReassignment(replicas)))).all().get();
            admin.electLeaders(ElectionType.PREFERRED, Set.of(partition)).all().get();
        } catch (ExecutionException failed) {
            if (!(failed.getCause() instanceof ElectionNotNeededException)) {
                throw failed;
            } // it leads already
        }
    }

    private static void cluster(JsonNode question, ArrayNode nodes) throws Exception {
        try (Admin admin = Admin.create(properties(question))) {
            Set<Integer> found = new HashSet<>();
            admin.describeCluster().nodes().get().forEach(node -> found.add(node.id()));
            found.stream().sorted().forEach(nodes::add);
        }
    }
}
