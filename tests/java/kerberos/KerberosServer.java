// SPDX-License-Identifier: Apache-2.0
package kcodec.kerberos;

import java.io.BufferedReader;
import java.io.File;
import java.io.InputStreamReader;
import java.net.ServerSocket;
import java.nio.charset.StandardCharsets;
import org.apache.kerby.kerberos.kerb.client.KrbClient;
import org.apache.kerby.kerberos.kerb.server.KdcConfigKey;
import org.apache.kerby.kerberos.kerb.server.SimpleKdcServer;

/**
 * A Kerberos server on loopback, from Apache Kerby, driven from outside by lines on standard input.
 *
 * <p>Arguments: the folder for its files, and the realm. The first line that it prints is {@code port N}. Each command
 * is answered by {@code done}; the fields of a command are separated by tabs:
 *
 * <ul>
 *   <li>{@code principal NAME KEYTAB}: create a principal with a random key, and write the key to a file;
 *   <li>{@code login NAME KEYTAB CACHE}: write a ticket of the principal to a credential cache, as kinit does.
 * </ul>
 *
 * <p>It ends when its input does.
 */
public final class KerberosServer {
    private KerberosServer() {}

    public static void main(String[] arguments) {
        try {
            serve(new File(arguments[0]), arguments[1]);
            System.exit(0);
        } catch (Exception error) { // threads of the server would keep the program alive
            error.printStackTrace();
            System.exit(1);
        }
    }

    private static void serve(File folder, String realm) throws Exception {
        int port;
        try (ServerSocket free = new ServerSocket(0)) {
            port = free.getLocalPort();
        }
        SimpleKdcServer server = new SimpleKdcServer();
        server.setWorkDir(folder);
        server.setKdcRealm(realm);
        server.setKdcHost("127.0.0.1");
        server.setAllowUdp(false);
        server.setKdcTcpPort(port);
        server.getKdcConfig().setLong(KdcConfigKey.MINIMUM_TICKET_LIFETIME, 1L);
        server.init();
        server.start();
        System.out.println("port " + port);
        BufferedReader commands = new BufferedReader(new InputStreamReader(System.in, StandardCharsets.UTF_8));
        for (String line = commands.readLine(); line != null; line = commands.readLine()) {
            String[] fields = line.split("\t");
            File keytab = new File(fields[2]);
            if (fields[0].equals("principal")) {
                server.createPrincipal(fields[1]);
                server.exportPrincipal(fields[1], keytab);
            } else {
                KrbClient client = server.getKrbClient();
                client.storeTicket(client.requestTgt(fields[1], keytab), new File(fields[3]));
            }
            System.out.println("done");
        }
        server.stop();
    }
}
