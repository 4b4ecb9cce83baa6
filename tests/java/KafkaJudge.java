// SPDX-License-Identifier: Apache-2.0
package kcodec.judge;

import com.fasterxml.jackson.core.JsonFactory;
import com.fasterxml.jackson.core.JsonGenerator;
import java.io.BufferedInputStream;
import java.io.ByteArrayOutputStream;
import java.io.DataInputStream;
import java.io.DataOutputStream;
import java.io.EOFException;
import java.io.IOException;
import java.io.InputStream;
import java.io.PrintStream;
import java.nio.ByteBuffer;
import org.apache.kafka.clients.consumer.internals.ConsumerJudge;
import org.apache.kafka.clients.producer.internals.BuiltInPartitioner;
import org.apache.kafka.common.utils.internals.AppInfoParser;

/**
 * Answers what Kafka's own classes make of bytes, for as long as its standard input stays open.
 *
 * <p>A question is an int32 length, one byte of command and its arguments, big-endian; an answer is an int32
 * length and a JSON object in UTF-8. Commands:
 *
 * <ul>
 *   <li>{@code V}: the version of Kafka's classes.
 *   <li>{@code R bytes}: the record set, batch by batch ({@link RecordSetJudge}).
 *   <li>{@code C int8 read_committed, int8 check_crcs, int64 fetch_offset, int32 n, n x (int64 producer_id, int64
 *       first_offset), bytes}: what a consumer delivers from that Fetch answer ({@link ConsumerJudge}).
 *   <li>{@code B}, {@code M}, {@code E}: a batch, an end marker, an emptied batch, as Kafka writes them ({@link
 *       BatchWriter}).
 *   <li>{@code S}, {@code F}: a batch whose header was changed in place, a record set that was filtered ({@link
 *       BatchRewriter}).
 *   <li>{@code L}, {@code P}: what a leader says to a produced record set ({@link ProduceJudge}).
 *   <li>{@code K int32 partitions, int32 n, n x key}: the partition of each key.
 *   <li>{@code J}: a message of Kafka's from JSON to bytes ({@link MessageJudge}); {@code W}: from bytes to JSON and
 *       bytes ({@link WireJudge}); {@code D path}: a partition directory
 *       as a broker loads it, {@code T}: offsets of timestamps in it ({@link DirectoryJudge}); {@code G bytes}: what the
 *       group coordinator knows from a log ({@link GroupJudge}); {@code A json}: shares of groups ({@link AssignJudge});
 *       {@code N}: the table of errors ({@link ErrorsJudge}).
 * </ul>
 *
 * <p>No rule of the record format is written down here: whatever is judged, a class of Kafka judges. An exception of
 * Kafka's classes is an answer; one of this protocol ends the program with a stack trace.
 */
public final class KafkaJudge {
    private final JsonFactory json = new JsonFactory();
    private final ConsumerJudge consumer = new ConsumerJudge();
    private final ProduceJudge producer = new ProduceJudge();

    private KafkaJudge() {}

    public static void main(String[] arguments) throws IOException {
        InputStream questions = new BufferedInputStream(System.in, 1 << 16);
        PrintStream answers = System.out;
        System.setOut(System.err); // a library that prints must not spoil the answers
        new KafkaJudge().serve(new DataInputStream(questions), new DataOutputStream(answers));
    }

    private void serve(DataInputStream questions, DataOutputStream answers) throws IOException {
        while (true) {
            int length;
            try {
                length = questions.readInt();
            } catch (EOFException closed) {
                return;
            }
            byte[] question = new byte[length];
            questions.readFully(question);
            byte[] answer = answer(ByteBuffer.wrap(question));
            answers.writeInt(answer.length);
            answers.write(answer);
            answers.flush();
        }
    }

    private byte[] answer(ByteBuffer question) throws IOException {
        ByteArrayOutputStream bytes = new ByteArrayOutputStream();
        try (JsonGenerator out = json.createGenerator(bytes)) {
            out.writeStartObject();
            char command = (char) question.get();
            switch (command) {
                case 'V' -> out.writeStringField("version", AppInfoParser.getVersion());
                case 'R' -> RecordSetJudge.write(question.slice(), out);
                case 'C' -> consumer.write(question, out);
                case 'B' -> BatchWriter.writeBatch(question, out);
                case 'M' -> BatchWriter.writeMarker(question, out);
                case 'E' -> BatchWriter.writeEmpty(question, out);
                case 'S' -> BatchRewriter.set(question, out);
                case 'F' -> BatchRewriter.filter(question, out);
                case 'L' -> producer.validate(question, out);
                case 'P' -> producer.append(question, out);
                case 'K' -> writePartitions(question, out);
                case 'J' -> MessageJudge.write(question, out);
                case 'W' -> WireJudge.write(question, out);
                case 'D' -> DirectoryJudge.write(question, out);
                case 'T' -> DirectoryJudge.writeOffsets(question, out);
                case 'G' -> GroupJudge.write(question, out);
                case 'A' -> AssignJudge.write(question, out);
                case 'N' -> ErrorsJudge.write(out);
                default -> throw new IOException("unknown command " + command);
            }
            out.writeEndObject();
        }
        return bytes.toByteArray();
    }

    private static void writePartitions(ByteBuffer question, JsonGenerator out) throws IOException {
        int partitions = question.getInt();
        out.writeArrayFieldStart("partitions");
        for (int left = question.getInt(); left > 0; left--) {
            out.writeNumber(BuiltInPartitioner.partitionForKey(BatchWriter.readBytes(question), partitions));
        }
        out.writeEndArray();
    }
}
