package jvm;

import java.io.IOException;
import java.nio.file.Files;
import java.nio.file.Path;

/** A row that is not read before a file is there: by it a test holds a Spark writer between its begin and its files. */
public final class Gate {
  private Gate() {}

  public static String pass(String file) throws InterruptedException, IOException {
    Files.write(Path.of(file + ".reached"), new byte[0]);
    while (!Files.exists(Path.of(file))) {
      Thread.sleep(20);
    }
    return file;
  }
}
