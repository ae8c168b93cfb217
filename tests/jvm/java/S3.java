package jvm;

import java.io.IOException;
import java.net.URI;
import java.net.http.HttpClient;
import java.net.http.HttpRequest;
import java.net.http.HttpResponse;
import java.nio.charset.StandardCharsets;
import java.security.GeneralSecurityException;
import java.security.MessageDigest;
import java.time.Duration;
import java.time.ZoneOffset;
import java.time.ZonedDateTime;
import java.time.format.DateTimeFormatter;
import java.util.HexFormat;
import java.util.Map;
import java.util.TreeMap;
import javax.crypto.Mac;
import javax.crypto.spec.SecretKeySpec;

/** Signed requests to a path-style S3 server, each sent once; endpoint and keys come from the AWS variables. */
public final class S3 {
  private static final DateTimeFormatter STAMP = DateTimeFormatter.ofPattern("yyyyMMdd'T'HHmmss'Z'");
  private static final Duration PATIENCE = Duration.ofSeconds(60);

  private final HttpClient http = HttpClient.newBuilder().version(HttpClient.Version.HTTP_1_1).build();
  private final URI endpoint;
  private final String key;
  private final String secret;
  private final String region;

  private S3(URI endpoint, String key, String secret, String region) {
    this.endpoint = endpoint;
    this.key = key;
    this.secret = secret;
    this.region = region;
  }

  public static S3 fromEnvironment() {
    Map<String, String> given = System.getenv();
    return new S3(
        URI.create(given.get("AWS_ENDPOINT_URL")),
        given.get("AWS_ACCESS_KEY_ID"),
        given.get("AWS_SECRET_ACCESS_KEY"),
        given.get("AWS_REGION"));
  }

  /** Ask for {@code s3://bucket/key} or {@code s3a://bucket/key}; an interrupt counts as no answer. */
  public HttpResponse<byte[]> send(String method, String url, Map<String, String> headers, byte[] body)
      throws IOException {
    URI target = URI.create(url);
    String path = "/" + target.getAuthority() + target.getRawPath();
    HttpRequest.Builder request = HttpRequest.newBuilder(endpoint.resolve(path))
        .timeout(PATIENCE)
        .method(method, HttpRequest.BodyPublishers.ofByteArray(body));
    signed(method, path, headers, body).forEach(request::header);
    try {
      return http.send(request.build(), HttpResponse.BodyHandlers.ofByteArray());
    } catch (InterruptedException interrupt) {
      Thread.currentThread().interrupt();
      throw new IOException(interrupt);
    }
  }

  public static String etag(HttpResponse<?> answer) {
    return answer.headers().firstValue("etag").orElseThrow();
  }

  private Map<String, String> signed(String method, String path, Map<String, String> headers, byte[] body) {
    String stamp = ZonedDateTime.now(ZoneOffset.UTC).format(STAMP);
    String scope = stamp.substring(0, 8) + "/" + region + "/s3/aws4_request";
    String digest = hex(sha256(body));
    TreeMap<String, String> named = new TreeMap<>(headers);
    named.put("x-amz-date", stamp);
    named.put("x-amz-content-sha256", digest);
    TreeMap<String, String> covered = new TreeMap<>(named);
    covered.put("host", endpoint.getAuthority());
    StringBuilder lines = new StringBuilder();
    covered.forEach((name, value) -> lines.append(name).append(':').append(value).append('\n'));
    String names = String.join(";", covered.keySet());
    String request = String.join("\n", method, path, "", lines.toString(), names, digest);
    String toSign = String.join("\n", "AWS4-HMAC-SHA256", stamp, scope, hex(sha256(bytes(request))));
    byte[] signing = bytes("AWS4" + secret);
    for (String part : scope.split("/")) {
      signing = hmac(signing, part);
    }
    String credential = "AWS4-HMAC-SHA256 Credential=" + key + "/" + scope;
    named.put("authorization", credential + ",SignedHeaders=" + names + ",Signature=" + hex(hmac(signing, toSign)));
    return named;
  }

  private static byte[] bytes(String text) {
    return text.getBytes(StandardCharsets.UTF_8);
  }

  private static String hex(byte[] data) {
    return HexFormat.of().formatHex(data);
  }

  private static byte[] sha256(byte[] data) {
    try {
      return MessageDigest.getInstance("SHA-256").digest(data);
    } catch (GeneralSecurityException impossible) {
      throw new IllegalStateException(impossible);
    }
  }

  private static byte[] hmac(byte[] key, String text) {
    try {
      Mac mac = Mac.getInstance("HmacSHA256");
      mac.init(new SecretKeySpec(key, "HmacSHA256"));
      return mac.doFinal(bytes(text));
    } catch (GeneralSecurityException impossible) {
      throw new IllegalStateException(impossible);
    }
  }
}
