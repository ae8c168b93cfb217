package jvm;

import org.apache.hudi.storage.StoragePath;

/** Writes where the lock of the table at each base path is, as Hudi's StoragePath has it, one a line. */
public final class StoragePaths {
    public static void main(String[] urls) {
        for (String url : urls) {
            System.out.println(new StoragePath(new StoragePath(url), ".hoodie/.locks/table_lock.json"));
        }
    }
}
