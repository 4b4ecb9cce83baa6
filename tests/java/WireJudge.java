// SPDX-License-Identifier: Apache-2.0
package kcodec.judge;

import com.fasterxml.jackson.core.JsonGenerator;
import java.io.File;
import java.io.IOException;
import java.lang.reflect.InvocationTargetException;
import java.net.URL;
import java.net.URLClassLoader;
import java.nio.ByteBuffer;
import java.nio.charset.StandardCharsets;
import java.util.HashMap;
import java.util.Map;

/**
 * A message of Kafka's from bytes, by the classes generated from its definition: of the Kafka on the class path, or of
 * another one whose jars lie in a folder.
 *
 * <p>A question: int16 version to read, int16 version to write, the folder (or nothing) and the class's full name behind their int32 lengths, bytes. An
 * answer: {@code json} as Kafka's converter prints the message, {@code left}, how many bytes it did not read, {@code
 * data}, the message as Kafka writes it again; or {@code refused} and {@code text}, by reader or writer.
 */
final class WireJudge {
    private static final String PROTOCOL = "org.apache.kafka.common.protocol.";
    private static final Map<String, ClassLoader> RELEASES = new HashMap<>();

    private WireJudge() {}

    static void write(ByteBuffer question, JsonGenerator out) throws IOException {
        short version = question.getShort();
        short writtenVersion = question.getShort();
        String folder = new String(BatchWriter.readBytes(question), StandardCharsets.UTF_8);
        String name = new String(BatchWriter.readBytes(question), StandardCharsets.UTF_8);
        try {
            ClassLoader kafka = folder.isEmpty() ? WireJudge.class.getClassLoader() : release(folder);
            judge(kafka, kafka.loadClass(name), version, writtenVersion, question.slice(), out);
        } catch (InvocationTargetException refused) {
            out.writeStringField("refused", refused.getCause().getClass().getSimpleName());
            out.writeStringField("text", String.valueOf(refused.getCause().getMessage()));
        } catch (ReflectiveOperationException wrong) {
            throw new IOException(name + " cannot be asked", wrong);
        }
    }

    private static void judge(ClassLoader kafka, Class<?> type, short version, short writtenVersion,
            ByteBuffer bytes, JsonGenerator out)
            throws ReflectiveOperationException, IOException {
        Class<?> readable = kafka.loadClass(PROTOCOL + "Readable");
        Class<?> accessor = kafka.loadClass(PROTOCOL + "ByteBufferAccessor");
        Object source = accessor.getConstructor(ByteBuffer.class).newInstance(bytes);
        Object message = type.getConstructor(readable, short.class).newInstance(source, version);
        out.writeNumberField("left", bytes.remaining());
        Object json = kafka.loadClass(type.getName() + "JsonConverter")
                .getMethod("write", type, short.class, boolean.class)
                .invoke(null, message, version, false);
        out.writeFieldName("json");
        out.writeRawValue(json.toString());
        Answers.writeBytes(out, "data", written(kafka, type, message, writtenVersion));
    }

    private static ByteBuffer written(ClassLoader kafka, Class<?> type, Object message, short version)
            throws ReflectiveOperationException {
        Class<?> cacheType = kafka.loadClass(PROTOCOL + "ObjectSerializationCache");
        Object cache = cacheType.getConstructor().newInstance();
        Object sized = type.getMethod("size", cacheType, short.class).invoke(message, cache, version);
        ByteBuffer bytes = ByteBuffer.allocate((int) sized);
        Object target = kafka.loadClass(PROTOCOL + "ByteBufferAccessor")
                .getConstructor(ByteBuffer.class).newInstance(bytes);
        type.getMethod("write", kafka.loadClass(PROTOCOL + "Writable"), cacheType, short.class)
                .invoke(message, target, cache, version);
        return bytes.flip();
    }

    private static ClassLoader release(String folder) throws IOException {
        ClassLoader known = RELEASES.get(folder);
        if (known != null) {
            return known;
        }
        File[] jars = new File(folder).listFiles((directory, name) -> name.endsWith(".jar"));
        if (jars == null) {
            throw new IOException("no jars in " + folder);
        }
        URL[] places = new URL[jars.length];
        for (int at = 0; at < jars.length; at++) {
            places[at] = jars[at].toURI().toURL();
        }
        ClassLoader made = new URLClassLoader(places, ClassLoader.getPlatformClassLoader());
        RELEASES.put(folder, made);
        return made;
    }
}
