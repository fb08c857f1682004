import java.io.ByteArrayInputStream;
import java.net.URI;
import java.net.http.HttpClient;
import java.net.http.HttpRequest;
import java.net.http.HttpRequest.BodyPublishers;
import java.net.http.HttpResponse.BodyHandlers;
import java.nio.charset.StandardCharsets;
import java.time.Duration;

/** Posts bodies of the given sizes, with a length and in chunks, each of them three times. It is
 * Java's own client as it comes, so every request offers HTTP/2 (`Upgrade: h2c`). */
public class Ask {
    static final String ROW = "{\"inputs\": [{\"name\": \"ids\", \"datatype\": \"INT64\","
        + " \"shape\": [1, 2], \"data\": [20, 22]}]";

    public static void main(String[] args) throws Exception {
        HttpClient client = HttpClient.newHttpClient();
        for (int turn = 0; turn < 3; turn++) {
            for (int n = 1; n < args.length; n++) {
                String spaces = " ".repeat(Integer.parseInt(args[n]) - ROW.length() - 1);
                byte[] body = (ROW + spaces + "}").getBytes(StandardCharsets.UTF_8);
                for (boolean chunked : new boolean[] {false, true}) {
                    var publisher = chunked
                        ? BodyPublishers.ofInputStream(() -> new ByteArrayInputStream(body))
                        : BodyPublishers.ofByteArray(body);
                    var request = HttpRequest.newBuilder(URI.create(args[0]))
                        .timeout(Duration.ofSeconds(20)).POST(publisher).build();
                    var answer = client.send(request, BodyHandlers.ofString());
                    System.out.println(answer.statusCode() + " " + answer.version() + " "
                        + body.length + " " + chunked + " " + answer.body());
                }
            }
        }
    }
}
