// SPDX-License-Identifier: Apache-2.0
package kcodec.judge;

import com.fasterxml.jackson.core.JsonGenerator;
import java.io.IOException;
import org.apache.kafka.common.errors.RetriableException;
import org.apache.kafka.common.protocol.Errors;

/** Kafka's table of errors: of each its code, its name, its exception and whether that is retriable. */
final class ErrorsJudge {
    private ErrorsJudge() {}

    static void write(JsonGenerator out) throws IOException {
        out.writeArrayFieldStart("errors");
        for (Errors error : Errors.values()) {
            out.writeStartObject();
            out.writeNumberField("code", error.code());
            out.writeStringField("name", error.name());
            out.writeStringField("exception", error.exceptionName());
            out.writeBooleanField("retriable", error.exception() instanceof RetriableException);
            out.writeEndObject();
        }
        out.writeEndArray();
    }
}
