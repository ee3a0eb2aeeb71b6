package io.penstock;

import io.delta.storage.S3SingleDriverLogStore;
import java.io.FileNotFoundException;
import java.io.IOException;
import java.io.InterruptedIOException;
import java.nio.charset.StandardCharsets;
import java.nio.file.FileAlreadyExistsException;
import java.util.Arrays;
import java.util.Iterator;
import org.apache.hadoop.conf.Configuration;
import org.apache.hadoop.fs.FSDataInputStream;
import org.apache.hadoop.fs.FSDataOutputStream;
import org.apache.hadoop.fs.FSDataOutputStreamBuilder;
import org.apache.hadoop.fs.FileSystem;
import org.apache.hadoop.fs.Path;
import software.amazon.awssdk.core.exception.SdkServiceException;

/**
 * Delta's log store for S3, except that it puts an entry only if it is absent, with If-None-Match.
 * Delta's own store looks first and then puts, so that two processes could both win.
 *
 * Compiled by Spark's Janino (session.py), which knows neither lambdas nor diamonds.
 */
public class ConditionalLogStore extends S3SingleDriverLogStore {
    private static final String CONDITIONAL = "fs.option.create.conditional.overwrite";
    private static final int CONFLICT = 409;
    /** The pauses before an entry is put again, as in log_store.py. */
    private static final long[] PAUSES_MS = {50, 100, 200, 400, 800};

    public ConditionalLogStore(Configuration hadoopConf) {
        super(hadoopConf);
    }

    public void write(Path path, Iterator actions, Boolean overwrite, Configuration hadoopConf)
            throws IOException {
        if (overwrite.booleanValue()) {
            super.write(path, actions, overwrite, hadoopConf);
            return;
        }
        byte[] content = content(actions);
        FileSystem files = path.getFileSystem(hadoopConf);
        if (there(files, path) != null) {
            throw new FileAlreadyExistsException(path.toString());
        }
        for (int attempt = 0; !putOrOurs(files, path, content, attempt); attempt++) {
            pause(PAUSES_MS[attempt]);
        }
    }

    /** Whether the entry is ours now; false: another put is under way, which may still fail. */
    private static boolean putOrOurs(FileSystem files, Path path, byte[] content, int attempt)
            throws IOException {
        try {
            put(files, path, content);
            return true;
        } catch (IOException error) {
            // It may be our own entry, if an answer was lost and the client sent the put again.
            byte[] found = there(files, path);
            if (found == null && isConflict(error) && attempt < PAUSES_MS.length) {
                return false;
            }
            if (found == null) {
                throw error;
            }
            if (!Arrays.equals(found, content)) {
                throw new FileAlreadyExistsException(path.toString());
            }
            return true;
        }
    }

    /** 409 ConditionalRequestConflict: S3's client leaves it to us to try again. */
    private static boolean isConflict(Throwable error) {
        for (Throwable cause = error; cause != null; cause = cause.getCause()) {
            if (cause instanceof SdkServiceException) {
                return ((SdkServiceException) cause).statusCode() == CONFLICT;
            }
        }
        return false;
    }

    private static void pause(long milliseconds) throws IOException {
        try {
            Thread.sleep(milliseconds);
        } catch (InterruptedException error) {
            Thread.currentThread().interrupt();
            throw new InterruptedIOException("interrupted while another put was under way");
        }
    }

    private static void put(FileSystem files, Path path, byte[] content) throws IOException {
        FSDataOutputStreamBuilder builder = files.createFile(path);
        builder.overwrite(true);
        builder.must(CONDITIONAL, true);
        FSDataOutputStream stream = (FSDataOutputStream) builder.build();
        stream.write(content);
        stream.close();
    }

    private static byte[] there(FileSystem files, Path path) throws IOException {
        FSDataInputStream stream = null;
        try {
            stream = files.open(path);
            return stream.readAllBytes();
        } catch (FileNotFoundException absent) {
            return null;
        } finally {
            if (stream != null) {
                stream.close();
            }
        }
    }

    private static byte[] content(Iterator actions) {
        StringBuilder text = new StringBuilder();
        while (actions.hasNext()) {
            text.append((String) actions.next()).append('\n');
        }
        return text.toString().getBytes(StandardCharsets.UTF_8);
    }
}
