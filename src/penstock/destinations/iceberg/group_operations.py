"""Table operations that hold a commit back, and the step that makes several of them visible at once, in Java.

Iceberg commits a table by writing a new metadata file and moving the catalog's pointer to it. `Staged` does the first
half. `move` does the second for many tables: in a JDBC catalog the pointers are rows of one table, so one SQL
transaction moves them all, each only if it still is what the commit was made of. Compiled by the compiler that comes
with Spark.
"""

from __future__ import annotations

CLASS = "dev.penstock.GroupOperations"
JAR = "penstock-group-operations-2.jar"
SOURCE = """
package dev.penstock;

import java.sql.Connection;
import java.sql.DriverManager;
import java.sql.PreparedStatement;
import java.sql.SQLException;
import java.util.Iterator;
import java.util.Map;
import java.util.Properties;
import java.util.UUID;
import org.apache.iceberg.CatalogUtil;
import org.apache.iceberg.TableMetadata;
import org.apache.iceberg.TableMetadataParser;
import org.apache.iceberg.TableOperations;
import org.apache.iceberg.encryption.EncryptionManager;
import org.apache.iceberg.exceptions.CommitFailedException;
import org.apache.iceberg.exceptions.CommitStateUnknownException;
import org.apache.iceberg.io.FileIO;
import org.apache.iceberg.io.LocationProvider;
import org.apache.iceberg.jdbc.UncheckedSQLException;

public class GroupOperations {
  private static final String MOVE =
      "UPDATE iceberg_tables SET metadata_location = ?, previous_metadata_location = ?"
          + " WHERE catalog_name = ? AND table_namespace = ? AND table_name = ? AND metadata_location = ?";
  private static final String SEPARATOR = String.valueOf((char) 0);
  private final String uri;
  private final String catalog;
  private final Properties settings = new Properties();
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
      close();
      throw new UncheckedSQLException(e, "The catalog's database: " + e.getMessage(), new Object[0]);
    }
    try {
      connection.setAutoCommit(true); // commits; commit() would begin the next transaction, and hold SQLite's lock
    } catch (SQLException e) {
      close();
      throw new CommitStateUnknownException(e);
    }
    return "";
  }

  public synchronized void close() {
    if (connection != null) {
      try {
        connection.close();
      } catch (SQLException e) {
        // it is given up either way, and the database takes back what was not committed
      }
      connection = null;
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
