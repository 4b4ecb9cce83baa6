// SPDX-License-Identifier: Apache-2.0
package kcodec.judge;

import com.fasterxml.jackson.core.JsonGenerator;
import com.fasterxml.jackson.databind.JsonNode;
import com.fasterxml.jackson.databind.ObjectMapper;
import java.io.IOException;
import java.nio.ByteBuffer;
import java.nio.charset.StandardCharsets;
import org.apache.kafka.common.protocol.Message;
import org.apache.kafka.common.protocol.MessageUtil;

/**
 * A message of Kafka's from JSON to bytes, by the classes generated from its definition.
 *
 * <p>A question: int16 version, the class's full name behind its int32 length, JSON. An answer: {@code data}, the bytes,
 * and {@code json}, what Kafka's converter makes of the message again.
 */
final class MessageJudge {
    private static final ObjectMapper JSON = new ObjectMapper();

    private MessageJudge() {}

    static void write(ByteBuffer question, JsonGenerator out) throws IOException {
        short version = question.getShort();
        String name = new String(BatchWriter.readBytes(question), StandardCharsets.UTF_8);
        byte[] told = new byte[question.remaining()];
        question.get(told);
        try {
            Class<?> converter = Class.forName(name + "JsonConverter");
            Message message = (Message) converter.getMethod("read", JsonNode.class, short.class)
                    .invoke(null, JSON.readTree(told), version);
            Answers.writeBytes(out, "data", MessageUtil.toByteBufferAccessor(message, version).buffer());
            Object again = converter.getMethod("write", message.getClass(), short.class).invoke(null, message, version);
            out.writeFieldName("json");
            out.writeRawValue(again.toString());
        } catch (ReflectiveOperationException refused) {
            throw new IOException(name + " version " + version + " does not take " + new String(told,
                    StandardCharsets.UTF_8), refused);
        }
    }
}
