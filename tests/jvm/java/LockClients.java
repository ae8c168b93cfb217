package jvm;

import java.io.BufferedReader;
import java.io.ByteArrayInputStream;
import java.io.InputStreamReader;
import java.io.PrintStream;
import java.net.http.HttpResponse;
import java.nio.charset.StandardCharsets;
import java.util.HashMap;
import java.util.Map;
import java.util.Properties;
import java.util.concurrent.ThreadLocalRandom;
import java.util.concurrent.TimeUnit;
import org.apache.hudi.client.transaction.lock.StorageBasedLockProvider;
import org.apache.hudi.client.transaction.lock.models.StorageLockData;
import org.apache.hudi.client.transaction.lock.models.StorageLockFile;
import org.apache.hudi.common.config.LockConfiguration;

/** Hudi's released storage-based lock providers, told on stdin what to do: a line of words, answered by a line. */
public final class LockClients {
  private final Map<String, StorageBasedLockProvider> providers = new HashMap<>();
  private final S3 s3 = S3.fromEnvironment();

  public static void main(String[] arguments) throws Exception {
    PrintStream answers = System.out;
    System.setOut(System.err); // whatever a library prints is no answer
    LockClients clients = new LockClients();
    BufferedReader lines = new BufferedReader(new InputStreamReader(System.in, StandardCharsets.UTF_8));
    answers.println("ready");
    answers.flush();
    for (String line = lines.readLine(); line != null; line = lines.readLine()) {
      answers.println(clients.answer(line.split("\t", -1)));
      answers.flush();
    }
    Runtime.getRuntime().halt(0); // no shutdown hook: whoever closes stdin has a killed process
  }

  private String answer(String[] words) {
    if (!words[0].equals("interrupted")) {
      Thread.interrupted(); // by a lease that another test let go
    }
    try {
      return "ok\t" + run(words);
    } catch (Throwable error) {
      error.printStackTrace();
      return "error\t" + error.getClass().getSimpleName() + ": " + String.valueOf(error.getMessage()).replace('\n', ' ');
    }
  }

  private Object run(String[] words) throws Exception {
    String name = words[1];
    switch (words[0]) {
      case "open":
        providers.put(name, open(words[2], words[3], words[4]));
        return "";
      case "try":
        return providers.get(name).tryLock(Long.parseLong(words[2]), TimeUnit.MILLISECONDS);
      case "unlock":
        providers.get(name).unlock();
        return "";
      case "held":
        return described(providers.get(name).getLock());
      case "interrupted":
        return Thread.interrupted(); // how the provider tells the thread that took the lock that it is lost
      case "close":
        providers.remove(name).close();
        return "";
      case "count":
        return count(providers.get(name), words[2], Integer.parseInt(words[3]));
      case "encode":
        StorageLockData data =
            new StorageLockData(Boolean.parseBoolean(words[1]), Long.parseLong(words[2]), words[3]);
        return new String(StorageLockFile.toByteArray(data), StandardCharsets.UTF_8);
      case "decode":
        byte[] text = name.getBytes(StandardCharsets.UTF_8);
        return described(StorageLockFile.createFromStream(new ByteArrayInputStream(text), "version"));
      default:
        throw new IllegalArgumentException(words[0]);
    }
  }

  private static String described(StorageLockFile file) {
    return file == null ? "none" : file.isExpired() + " " + file.getValidUntilMs() + " " + file.getOwner();
  }

  private static StorageBasedLockProvider open(String table, String validity, String renew) {
    Properties settings = new Properties();
    settings.setProperty("hoodie.base.path", table);
    settings.setProperty("hoodie.write.lock.storage.validity.timeout.secs", validity);
    settings.setProperty("hoodie.write.lock.storage.renew.interval.secs", renew);
    return new StorageBasedLockProvider(new LockConfiguration(settings), null);
  }

  /** Adds one to a counter, so many times, by a read and a plain write that nothing but the lock protects. */
  private String count(StorageBasedLockProvider lock, String counter, int times) throws Exception {
    int looks = 0;
    for (int done = 0; done < times; done++) {
      for (looks++; !lock.tryLock(); looks++) {
        pause(100);
      }
      HttpResponse<byte[]> before = s3.send("GET", counter, Map.of(), new byte[0]);
      int value = Integer.parseInt(new String(before.body(), StandardCharsets.UTF_8));
      pause(10);
      byte[] after = String.valueOf(value + 1).getBytes(StandardCharsets.UTF_8);
      if (s3.send("PUT", counter, Map.of(), after).statusCode() != 200) {
        throw new IllegalStateException("the counter was not written");
      }
      lock.unlock();
      pause(30);
    }
    return times + " " + looks;
  }

  private static void pause(int atMostMs) throws InterruptedException {
    Thread.sleep(ThreadLocalRandom.current().nextLong(1, atMostMs + 1));
  }
}
