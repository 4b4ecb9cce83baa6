// SPDX-License-Identifier: Apache-2.0
package kcodec.judge;

import com.fasterxml.jackson.core.JsonGenerator;
import java.io.IOException;
import java.nio.ByteBuffer;
import org.apache.kafka.common.header.Header;

/** How bytes, headers and exceptions are written as JSON: bytes in base64, null as null. */
public final class Answers {
    private Answers() {}

    /** Writes the remaining bytes of {@code value}, or null. */
    public static void writeBytes(JsonGenerator out, String name, ByteBuffer value) throws IOException {
        if (value == null) {
            out.writeNullField(name);
            return;
        }
        byte[] copy = new byte[value.remaining()];
        value.duplicate().get(copy);
        out.writeBinaryField(name, copy);
    }

    /** Writes an array, or null. */
    public static void writeBytes(JsonGenerator out, String name, byte[] value) throws IOException {
        writeBytes(out, name, value == null ? null : ByteBuffer.wrap(value));
    }

    /** Writes headers as pairs of the name, as the text Kafka's Header gives, and the value. */
    public static void writeHeaders(JsonGenerator out, Iterable<Header> headers) throws IOException {
        out.writeArrayFieldStart("headers");
        for (Header header : headers) {
            out.writeStartArray();
            out.writeString(header.key());
            byte[] value = header.value();
            if (value == null) {
                out.writeNull();
            } else {
                out.writeBinary(value);
            }
            out.writeEndArray();
        }
        out.writeEndArray();
    }

    /** Writes class and message of an exception and of its first cause: Kafka's fetcher wraps the telling one. */
    public static void writeError(JsonGenerator out, String name, Throwable error) throws IOException {
        out.writeObjectFieldStart(name);
        out.writeStringField("class", error.getClass().getSimpleName());
        out.writeStringField("message", String.valueOf(error.getMessage()));
        if (error.getCause() != null) {
            out.writeStringField("cause", error.getCause().getClass().getSimpleName());
            out.writeStringField("causeMessage", String.valueOf(error.getCause().getMessage()));
        }
        out.writeEndObject();
    }
}
