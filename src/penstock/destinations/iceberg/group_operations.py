"""Table operations that hold a commit back, and the step that makes several of them visible at once, in Java.

Iceberg commits a table by writing a new metadata file and moving the catalog's pointer to it. `Staged` does the first
half. `move` does the second for many tables: in a JDBC catalog the pointers are rows of one table, so one SQL
transaction moves them all, each only if it still is what the commit was made of.

`Batch` makes the ordinary changes of many tables ready, rows, positional deletes and properties, by the same steps as
`commit.StrictTransaction`: over py4j these are some eighty calls a table, which cost more than the commits themselves.
Compiled by the compiler that comes with Spark.
"""

from __future__ import annotations

CLASS = "dev.penstock.GroupOperations"
JAR = "penstock-group-commit-1.jar"
SOURCE = """
package dev.penstock;

import java.sql.Connection;
import java.sql.DriverManager;
import java.sql.PreparedStatement;
import java.sql.SQLException;
import java.util.ArrayList;
import java.util.Iterator;
import java.util.List;
import java.util.Map;
import java.util.Properties;
import java.util.UUID;
import java.util.concurrent.ExecutorService;
import java.util.concurrent.Executors;
import java.util.concurrent.Future;
import java.util.concurrent.ThreadFactory;
import org.apache.iceberg.BaseTransaction;
import org.apache.iceberg.CatalogUtil;
import org.apache.iceberg.ContentFileParser;
import org.apache.iceberg.DataFile;
import org.apache.iceberg.DeleteFile;
import org.apache.iceberg.RowDelta;
import org.apache.iceberg.Snapshot;
import org.apache.iceberg.TableMetadata;
import org.apache.iceberg.TableMetadataParser;
import org.apache.iceberg.TableOperations;
import org.apache.iceberg.Transactions;
import org.apache.iceberg.UpdateProperties;
import org.apache.iceberg.encryption.EncryptionManager;
import org.apache.iceberg.exceptions.CommitFailedException;
import org.apache.iceberg.exceptions.CommitStateUnknownException;
import org.apache.iceberg.exceptions.NoSuchTableException;
import org.apache.iceberg.io.FileIO;
import org.apache.iceberg.io.LocationProvider;
import org.apache.iceberg.jdbc.UncheckedSQLException;
import org.apache.iceberg.relocated.com.google.common.util.concurrent.MoreExecutors;
import org.apache.iceberg.shaded.com.fasterxml.jackson.databind.JsonNode;
import org.apache.iceberg.shaded.com.fasterxml.jackson.databind.node.ArrayNode;
import org.apache.iceberg.shaded.com.fasterxml.jackson.databind.node.ObjectNode;
import org.apache.iceberg.util.JsonUtil;

public class GroupOperations {
  private static final String MOVE =
      "UPDATE iceberg_tables SET metadata_location = ?, previous_metadata_location = ?"
          + " WHERE catalog_name = ? AND table_namespace = ? AND table_name = ? AND metadata_location = ?";
  private static final String SEPARATOR = String.valueOf((char) 0);
  private static final int THREADS = 4;
  private final String uri;
  private final String catalog;
  private final Properties settings = new Properties();
  private final ExecutorService threads = Executors.newFixedThreadPool(THREADS, new Daemons());
  private Connection connection = null;

  public GroupOperations(String uri, String catalog, Map given) {
    this.uri = uri;
    this.catalog = catalog;
    for (Iterator each = given.entrySet().iterator(); each.hasNext(); ) {
      Map.Entry entry = (Map.Entry) each.next();
      settings.setProperty((String) entry.getKey(), (String) entry.getValue());
    }
  }

  public Staged staged(TableOperations real) {
    return new Staged(real);
  }

  public Batch batch() {
    return new Batch(threads);
  }

  /* Of each table: namespace, name, metadata file before and after. The first that is not as it was, or nothing. */
  public synchronized String move(String tables) {
    String[] fields = tables.split(SEPARATOR, -1);
    try {
      if (connection == null) {
        connection = DriverManager.getConnection(uri, settings);
      }
      connection.setAutoCommit(false);
      PreparedStatement move = connection.prepareStatement(MOVE);
      try {
        for (int at = 0; at + 3 < fields.length; at += 4) {
          move.setString(1, fields[at + 3]);
          move.setString(2, fields[at + 2]);
          move.setString(3, catalog);
          move.setString(4, fields[at]);
          move.setString(5, fields[at + 1]);
          move.setString(6, fields[at + 2]);
          if (move.executeUpdate() != 1) {
            connection.rollback();
            connection.setAutoCommit(true);
            return fields[at] + "." + fields[at + 1];
          }
        }
      } finally {
        move.close();
      }
    } catch (SQLException e) {
      disconnect();
      throw new UncheckedSQLException(e, "The catalog's database: " + e.getMessage(), new Object[0]);
    }
    try {
      connection.setAutoCommit(true); // commits; commit() would begin the next transaction, and hold SQLite's lock
    } catch (SQLException e) {
      disconnect();
      throw new CommitStateUnknownException(e);
    }
    return "";
  }

  public synchronized void close() {
    threads.shutdown();
    disconnect();
  }

  private void disconnect() {
    if (connection != null) {
      try {
        connection.close();
      } catch (SQLException e) {
        // it is given up either way, and the database takes back what was not committed
      }
      connection = null;
    }
  }

  private static class Daemons implements ThreadFactory {
    public Thread newThread(Runnable work) {
      Thread made = new Thread(work, "penstock-group-commit");
      made.setDaemon(true);
      return made;
    }
  }

  /* Ordinary changes of several tables. Whoever uses it keeps all other changes of these tables away meanwhile. */
  public static class Batch {
    private final ExecutorService threads;
    private final List changes = new ArrayList();

    Batch(ExecutorService threads) {
      this.threads = threads;
    }

    public void add(TableOperations real, String described) {
      changes.add(new Change(real, described));
    }

    /* A line for each table: its new metadata file; nothing if it has changed; "!" if it failed, which `fail` says. */
    public String stage() throws Exception {
      run(0);
      StringBuilder lines = new StringBuilder();
      for (int at = 0; at < changes.size(); at++) {
        Change one = (Change) changes.get(at);
        lines.append(at == 0 ? "" : "\\n");
        lines.append(one.failure != null ? "!" : one.staged == null ? "" : one.staged.location());
      }
      return lines.toString();
    }

    public void fail(int at) throws Throwable {
      throw ((Change) changes.get(at)).failure;
    }

    /* The pointers are moved. For each table what is there now, as JSON, or null if it cannot be read. */
    public String moved() throws Exception {
      run(1);
      ArrayNode found = JsonUtil.mapper().createArrayNode();
      for (int at = 0; at < changes.size(); at++) {
        Change one = (Change) changes.get(at);
        if (one.found == null) {
          found.addNull();
        } else {
          found.add(one.found);
        }
      }
      return found.toString();
    }

    public void discard() throws Exception {
      run(2);
    }

    private void run(int step) throws Exception {
      List running = new ArrayList();
      for (int at = 0; at < changes.size(); at++) {
        running.add(threads.submit(new Step((Change) changes.get(at), step)));
      }
      for (int at = 0; at < running.size(); at++) {
        ((Future) running.get(at)).get();
      }
    }
  }

  private static class Step implements Runnable {
    private final Change change;
    private final int step;

    Step(Change change, int step) {
      this.change = change;
      this.step = step;
    }

    public void run() {
      if (step == 0) {
        change.stage();
      } else if (change.staged != null && step == 1) {
        change.settle();
      } else if (change.staged != null) {
        change.giveUp();
      }
    }
  }

  private static class Change {
    final TableOperations real;
    final String described;
    Staged staged = null; // once it is ready
    Throwable failure = null;
    ObjectNode found = null;

    Change(TableOperations real, String described) {
      this.real = real;
      this.described = described;
    }

    void stage() {
      try {
        make(JsonUtil.mapper().readTree(described));
      } catch (Throwable e) {
        failure = e; // raised in Python, where errors are told apart
      }
    }

    private void make(JsonNode told) throws Exception {
      Staged operations = new Staged(real);
      BaseTransaction transaction =
          (BaseTransaction) Transactions.newTransaction(told.get("table").asText(), operations);
      TableMetadata start = transaction.startMetadata();
      if (start == null) {
        throw new NoSuchTableException("the table is gone", new Object[0]);
      }
      if (!told.get("base").asText().equals(start.metadataFileLocation())) {
        return;
      }
      transaction.updateSchema().commit(); // refuses to be made again on another base
      if (told.get("files").size() > 0) {
        change(transaction.newRowDelta(), start, told);
      }
      Snapshot current = transaction.table().currentSnapshot();
      UpdateProperties update = transaction.updateProperties();
      for (Iterator each = told.get("properties").fieldNames(); each.hasNext(); ) {
        String name = (String) each.next();
        update.set(name, told.get("properties").get(name).asText());
      }
      update.set(
          told.get("lineage").asText(),
          current == null ? told.get("none").asText() : current.snapshotId() + " " + current.sequenceNumber());
      update.commit();
      transaction.commitTransaction();
      staged = operations;
    }

    private void change(RowDelta delta, TableMetadata start, JsonNode told) {
      if (told.get("local").asBoolean()) {
        ExecutorService here = MoreExecutors.newDirectExecutorService();
        delta.scanManifestsWith(here);
        delta.writeManifestsWith(here, 1);
      }
      for (Iterator each = told.get("files").elements(); each.hasNext(); ) {
        Object file = ContentFileParser.fromJson((JsonNode) each.next(), start.specsById());
        if (file instanceof DataFile) {
          delta.addRows((DataFile) file);
        } else {
          delta.addDeletes((DeleteFile) file);
        }
      }
      Snapshot before = start.currentSnapshot();
      if (before != null) {
        delta.validateFromSnapshot(before.snapshotId());
      }
      delta.validateNoConflictingDataFiles();
      delta.validateNoConflictingDeleteFiles();
      List referenced = new ArrayList();
      for (Iterator each = told.get("referenced").elements(); each.hasNext(); ) {
        referenced.add(((JsonNode) each.next()).asText());
      }
      if (!referenced.isEmpty()) {
        delta.validateDataFilesExist(referenced);
      }
      delta.commit();
    }

    void settle() {
      try {
        staged.moved();
        TableMetadata now = real.current();
        List before = now.previousFiles();
        Snapshot snapshot = now.currentSnapshot();
        ObjectNode node = JsonUtil.mapper().createObjectNode();
        node.put("metadata", now.metadataFileLocation());
        node.put("previous", ((TableMetadata.MetadataLogEntry) before.get(before.size() - 1)).file());
        if (snapshot != null) {
          node.put("snapshot", snapshot.snapshotId());
          node.put("sequence", snapshot.sequenceNumber());
          node.put("data", Integer.parseInt((String) snapshot.summary().get("total-data-files")));
          node.put("deletes", Integer.parseInt((String) snapshot.summary().get("total-delete-files")));
        }
        found = node;
      } catch (RuntimeException e) {
        found = null; // it is read again before the table's next commit
      }
    }

    void giveUp() {
      try {
        staged.discard();
      } catch (RuntimeException e) {
        return; // the sweep finds the file
      }
    }
  }

  public static class Staged implements TableOperations {
    private final TableOperations real;
    private TableMetadata base = null;
    private TableMetadata made = null;
    private String location = "";

    Staged(TableOperations real) {
      this.real = real;
    }

    public String location() {
      return location;
    }

    public void commit(TableMetadata from, TableMetadata metadata) {
      if (from != real.current()) {
        throw new CommitFailedException("the table has changed", new Object[0]);
      }
      String codec = metadata.property("write.metadata.compression-codec", "none");
      String before = from.metadataFileLocation();
      String[] number = before.substring(before.lastIndexOf('/') + 1).split("-");
      int version = number[0].matches("[0-9]+") ? Integer.parseInt(number[0]) + 1 : 0;
      String name = String.format("%05d-%s%s", new Object[] {
        Integer.valueOf(version), UUID.randomUUID().toString(), TableMetadataParser.getFileExtension(codec)
      });
      String place = real.temp(metadata).metadataFileLocation(name);
      TableMetadataParser.overwrite(metadata, real.io().newOutputFile(place));
      this.base = from;
      this.made = metadata;
      this.location = place;
    }

    public void moved() {
      CatalogUtil.deleteRemovedMetadataFiles(real.io(), base, made);
      real.refresh();
    }

    public void discard() {
      if (!location.isEmpty()) {
        real.io().deleteFile(location);
      }
    }

    public TableMetadata current() {
      return real.current();
    }

    public TableMetadata refresh() {
      return real.refresh();
    }

    public FileIO io() {
      return real.io();
    }

    public EncryptionManager encryption() {
      return real.encryption();
    }

    public String metadataFileLocation(String name) {
      return real.metadataFileLocation(name);
    }

    public LocationProvider locationProvider() {
      return real.locationProvider();
    }

    public TableOperations temp(TableMetadata metadata) {
      return real.temp(metadata);
    }

    public long newSnapshotId() {
      return real.newSnapshotId();
    }

    public boolean requireStrictCleanup() {
      return real.requireStrictCleanup();
    }
  }
}
"""
