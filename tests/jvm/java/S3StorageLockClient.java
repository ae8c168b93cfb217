package org.apache.hudi.aws.transaction.lock;

import java.io.ByteArrayInputStream;
import java.io.IOException;
import java.io.UncheckedIOException;
import java.net.http.HttpResponse;
import java.nio.charset.StandardCharsets;
import java.util.Map;
import java.util.Properties;
import org.apache.hudi.client.transaction.lock.StorageLockClient;
import org.apache.hudi.client.transaction.lock.models.LockGetResult;
import org.apache.hudi.client.transaction.lock.models.LockUpsertResult;
import org.apache.hudi.client.transaction.lock.models.StorageLockData;
import org.apache.hudi.client.transaction.lock.models.StorageLockFile;
import org.apache.hudi.common.util.Option;
import org.apache.hudi.common.util.collection.Pair;
import jvm.S3;

/**
 * The requests of Hudi's storage-based lock provider, sent to the S3 server of a test with nothing but the JDK.
 *
 * <p>It bears the name under which the released provider looks for its S3 client, because the artifact that has the
 * original (hudi-aws) and its SDK are not needed for what is tested: every decision, and every byte of the record,
 * is the released provider's own. What is said here is only which condition a request carries and what its status means.
 */
public final class S3StorageLockClient implements StorageLockClient {
  private final S3 s3 = S3.fromEnvironment();
  private final String lock;

  public S3StorageLockClient(String owner, String lockFile, Properties settings) {
    this.lock = lockFile;
  }

  @Override
  public Pair<LockUpsertResult, Option<StorageLockFile>> tryUpsertLockFile(
      StorageLockData data, Option<StorageLockFile> previous) {
    Map<String, String> condition = previous.isPresent()
        ? Map.of("if-match", previous.get().getVersionId())
        : Map.of("if-none-match", "*");
    HttpResponse<byte[]> answer;
    try {
      answer = s3.send("PUT", lock, condition, StorageLockFile.toByteArray(data));
    } catch (IOException noAnswer) {
      return Pair.of(LockUpsertResult.UNKNOWN_ERROR, Option.empty());
    }
    return switch (answer.statusCode()) {
      case 200 -> Pair.of(LockUpsertResult.SUCCESS, Option.of(new StorageLockFile(data, S3.etag(answer))));
      case 412 -> Pair.of(LockUpsertResult.ACQUIRED_BY_OTHERS, Option.empty());
      case 429, 503 -> Pair.of(LockUpsertResult.THROTTLED, Option.empty());
      default -> Pair.of(LockUpsertResult.UNKNOWN_ERROR, Option.empty());
    };
  }

  @Override
  public Pair<LockGetResult, Option<StorageLockFile>> readCurrentLockFile() {
    System.err.println("looks at " + lock); // so that a test can wait for it
    HttpResponse<byte[]> answer;
    try {
      answer = s3.send("GET", lock, Map.of(), new byte[0]);
    } catch (IOException noAnswer) {
      return Pair.of(LockGetResult.UNKNOWN_ERROR, Option.empty());
    }
    return switch (answer.statusCode()) {
      case 200 -> Pair.of(
          LockGetResult.SUCCESS,
          Option.of(StorageLockFile.createFromStream(new ByteArrayInputStream(answer.body()), S3.etag(answer))));
      case 404 -> Pair.of(LockGetResult.NOT_EXISTS, Option.empty());
      default -> Pair.of(LockGetResult.UNKNOWN_ERROR, Option.empty());
    };
  }

  @Override
  public Option<String> readObject(String path, boolean checkExistsFirst) {
    try {
      HttpResponse<byte[]> answer = s3.send("GET", path, Map.of(), new byte[0]);
      boolean there = answer.statusCode() == 200;
      return there ? Option.of(new String(answer.body(), StandardCharsets.UTF_8)) : Option.empty();
    } catch (IOException noAnswer) {
      throw new UncheckedIOException(noAnswer);
    }
  }

  @Override
  public boolean writeObject(String path, String content) {
    try {
      return s3.send("PUT", path, Map.of(), content.getBytes(StandardCharsets.UTF_8)).statusCode() == 200;
    } catch (IOException noAnswer) {
      return false;
    }
  }

  @Override
  public void close() {}
}
