package dev.penstock;

import java.lang.reflect.Field;
import java.nio.ByteBuffer;
import java.sql.Connection;
import java.sql.DriverManager;
import java.sql.PreparedStatement;
import java.sql.SQLException;
import java.util.ArrayList;
import java.util.Collections;
import java.util.HashSet;
import java.util.Iterator;
import java.util.List;
import java.util.Map;
import java.util.Properties;
import java.util.Set;
import java.util.UUID;
import java.util.concurrent.ConcurrentHashMap;
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
import org.apache.iceberg.UpdateRequirements;
import org.apache.iceberg.catalog.TableCommit;
import org.apache.iceberg.catalog.TableIdentifier;
import org.apache.iceberg.encryption.EncryptionManager;
import org.apache.iceberg.exceptions.BadRequestException;
import org.apache.iceberg.exceptions.CommitFailedException;
import org.apache.iceberg.exceptions.CommitStateUnknownException;
import org.apache.iceberg.exceptions.ForbiddenException;
import org.apache.iceberg.exceptions.NoSuchTableException;
import org.apache.iceberg.exceptions.NotAuthorizedException;
import org.apache.iceberg.io.FileIO;
import org.apache.iceberg.io.LocationProvider;
import org.apache.iceberg.jdbc.UncheckedSQLException;
import org.apache.iceberg.relocated.com.google.common.util.concurrent.MoreExecutors;
import org.apache.iceberg.rest.Endpoint;
import org.apache.iceberg.rest.RESTCatalog;
import org.apache.iceberg.rest.RESTSessionCatalog;
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
  private final RESTCatalog rest; // or null: then it is a JDBC catalog
  private final Map waiting; // of a REST catalog: staged changes by the names that stand for their metadata files
  private final Properties settings = new Properties();
  private final ExecutorService threads = Executors.newFixedThreadPool(THREADS, new Daemons());
  private Connection connection = null;

  public GroupOperations(String uri, String catalog, Map given) {
    this.uri = uri;
    this.catalog = catalog;
    this.rest = null;
    this.waiting = null;
    for (Iterator each = given.entrySet().iterator(); each.hasNext(); ) {
      Map.Entry entry = (Map.Entry) each.next();
      settings.setProperty((String) entry.getKey(), (String) entry.getValue());
    }
  }

  private GroupOperations(RESTCatalog rest) {
    this.uri = "";
    this.catalog = rest.name();
    this.rest = rest;
    this.waiting = new ConcurrentHashMap();
  }

  /* For a REST catalog that commits several tables in one step; null for any other. It may be asked at any time. */
  public static GroupOperations ofRest(Object catalog) {
    if (!(catalog instanceof RESTCatalog)) {
      return null;
    }
    RESTCatalog rest = (RESTCatalog) catalog;
    return offered(rest) || isNessie(rest) ? new GroupOperations(rest) : null;
  }

  /* The octets of a column's lower and upper bound, with a space between them. */
  public static String bounds(DataFile file, int column) {
    return hex(file.lowerBounds(), column) + " " + hex(file.upperBounds(), column);
  }

  private static String hex(Map bounds, int column) {
    ByteBuffer found = bounds == null ? null : (ByteBuffer) bounds.get(Integer.valueOf(column));
    if (found == null) {
      return "";
    }
    StringBuilder text = new StringBuilder();
    for (int at = found.position(); at < found.limit(); at++) {
      text.append(String.format("%02x", new Object[] {Byte.valueOf(found.get(at))}));
    }
    return text.toString();
  }

  private static boolean offered(RESTCatalog rest) {
    try {
      rest.commitTransaction(Collections.emptyList()); // fails before anything is sent: what for, tells
    } catch (UnsupportedOperationException e) {
      return false;
    } catch (IllegalArgumentException e) {
      return true;
    }
    return true;
  }

  /* Nessie commits several tables and does not say so in its configuration, which Iceberg's client goes by. */
  private static boolean isNessie(RESTCatalog rest) {
    if (!"true".equals(rest.properties().get("nessie.is-nessie-catalog"))) {
      return false;
    }
    try {
      Field session = RESTCatalog.class.getDeclaredField("sessionCatalog");
      session.setAccessible(true);
      Field known = RESTSessionCatalog.class.getDeclaredField("endpoints");
      known.setAccessible(true);
      Set more = new HashSet((Set) known.get(session.get(rest)));
      more.add(Endpoint.V1_COMMIT_TRANSACTION);
      known.set(session.get(rest), more);
    } catch (ReflectiveOperationException e) {
      return false;
    }
    return offered(rest);
  }

  public Staged staged(TableOperations real) {
    return new Staged(real, waiting);
  }

  public Batch batch() {
    return new Batch(threads, waiting);
  }

  /* Of each table: namespace, name, metadata file before and after. The first that is not as it was, or nothing. */
  public synchronized String move(String tables) {
    String[] fields = tables.split(SEPARATOR, -1);
    if (rest != null) {
      request(fields);
      return "";
    }
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

  private void request(String[] fields) {
    List staged = new ArrayList();
    List commits = new ArrayList();
    for (int at = 0; at + 3 < fields.length; at += 4) {
      Staged one = (Staged) waiting.get(fields[at + 3]);
      staged.add(one);
      commits.add(new Request(TableIdentifier.of(new String[] {fields[at], fields[at + 1]}), one.base, one.made));
    }
    try {
      rest.commitTransaction(commits);
    } catch (CommitFailedException e) {
      if (!isMade(staged)) {
        throw e;
      }
    } catch (NoSuchTableException e) {
      throw e;
    } catch (BadRequestException e) {
      throw e;
    } catch (NotAuthorizedException e) {
      throw e;
    } catch (ForbiddenException e) {
      throw e;
    } catch (CommitStateUnknownException e) {
      throw e;
    } catch (RuntimeException e) {
      throw new CommitStateUnknownException(e);
    } finally {
      for (int at = 0; at + 3 < fields.length; at += 4) {
        waiting.remove(fields[at + 3]);
      }
    }
  }

  private static class Request implements TableCommit {
    private final TableIdentifier table;
    private final TableMetadata base;
    private final TableMetadata made;

    Request(TableIdentifier table, TableMetadata base, TableMetadata made) {
      this.table = table;
      this.base = base;
      this.made = made;
    }

    public TableIdentifier identifier() {
      return table;
    }

    public List requirements() {
      return UpdateRequirements.forUpdateTable(base, made.changes());
    }

    public List updates() {
      return made.changes();
    }
  }

  /* Whether a refused request had been made before: a proxy may have sent it twice. */
  private static boolean isMade(List staged) {
    for (int at = 0; at < staged.size(); at++) {
      Staged one = (Staged) staged.get(at);
      Snapshot ours = one.made.currentSnapshot();
      try {
        TableMetadata now = one.refresh();
        if (now != null && ours != null && now.snapshot(ours.snapshotId()) != null) {
          return true;
        }
      } catch (NoSuchTableException e) {
        continue;
      } catch (RuntimeException e) {
        throw new CommitStateUnknownException(e);
      }
    }
    return false;
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
    private final Map waiting;
    private final List changes = new ArrayList();

    Batch(ExecutorService threads, Map waiting) {
      this.threads = threads;
      this.waiting = waiting;
    }

    public void add(TableOperations real, String described) {
      changes.add(new Change(real, waiting, described));
    }

    /* A line for each table: its new metadata file; nothing if it has changed; "!" if it failed, which `fail` says. */
    public String stage() throws Exception {
      run(0);
      StringBuilder lines = new StringBuilder();
      for (int at = 0; at < changes.size(); at++) {
        Change one = (Change) changes.get(at);
        lines.append(at == 0 ? "" : "\n");
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
    final Map waiting;
    final String described;
    Staged staged = null; // once it is ready
    Throwable failure = null;
    ObjectNode found = null;

    Change(TableOperations real, Map waiting, String described) {
      this.real = real;
      this.waiting = waiting;
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
      Staged operations = new Staged(real, waiting);
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
        Snapshot snapshot = now.currentSnapshot();
        ObjectNode node = JsonUtil.mapper().createObjectNode();
        node.put("metadata", now.metadataFileLocation());
        node.put("previous", staged.before(now));
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
    private final Map waiting; // null: a JDBC catalog's
    TableMetadata base = null;
    TableMetadata made = null;
    private String location = "";

    Staged(TableOperations real, Map waiting) {
      this.real = real;
      this.waiting = waiting;
    }

    public String location() {
      return location;
    }

    public void commit(TableMetadata from, TableMetadata metadata) {
      if (from != real.current()) {
        throw new CommitFailedException("the table has changed", new Object[0]);
      }
      this.base = from;
      this.made = metadata;
      if (waiting != null) {
        this.location = "staged:" + UUID.randomUUID().toString();
        waiting.put(location, this);
        return;
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
      this.location = place;
    }

    public void moved() {
      if (waiting != null) {
        real.refresh();
        return;
      }
      CatalogUtil.deleteRemovedMetadataFiles(real.io(), base, made);
      real.refresh();
    }

    /* The metadata file before the present one. A catalog that keeps no list of them, and required the snapshot of the
       base, has made nothing else if our snapshot is the current one and the columns are ours. */
    String before(TableMetadata now) {
      List earlier = now.previousFiles();
      if (!earlier.isEmpty()) {
        return ((TableMetadata.MetadataLogEntry) earlier.get(earlier.size() - 1)).file();
      }
      Snapshot current = now.currentSnapshot();
      Snapshot ours = made.currentSnapshot();
      boolean alone = current != null && ours != null && current.snapshotId() == ours.snapshotId();
      if (waiting == null || !alone || !now.schema().sameSchema(made.schema())) {
        throw new IllegalStateException("nobody can say what the table was before");
      }
      return base.metadataFileLocation();
    }

    public void discard() {
      if (waiting != null) {
        waiting.remove(location);
      } else if (!location.isEmpty()) {
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
