package dev.penstock;

import java.io.File;
import java.io.FileNotFoundException;
import java.io.IOException;
import java.io.UncheckedIOException;
import java.util.Collections;
import java.util.Iterator;
import java.util.Map;
import org.apache.iceberg.Files;
import org.apache.iceberg.io.FileIO;
import org.apache.iceberg.io.InputFile;
import org.apache.iceberg.io.OutputFile;
import org.apache.iceberg.io.SupportsBulkOperations;

public class LocalFileIO implements FileIO, SupportsBulkOperations {
  private Map properties = Collections.emptyMap();
  private String warehouse = "/";

  public void initialize(Map given) {
    this.properties = given;
    this.warehouse = path((String) given.get("warehouse"));
  }

  public Map properties() {
    return properties;
  }

  public InputFile newInputFile(String location) {
    return Files.localInput(path(location));
  }

  public OutputFile newOutputFile(String location) {
    if (!new File(warehouse).isDirectory()) {
      throw new UncheckedIOException(new FileNotFoundException("the warehouse " + warehouse + " is not there"));
    }
    return Files.localOutput(path(location));
  }

  public void deleteFile(String location) {
    try {
      java.nio.file.Files.deleteIfExists(new File(path(location)).toPath());
    } catch (IOException e) {
      throw new UncheckedIOException(e);
    }
  }

  public void deleteFiles(Iterable locations) {
    for (Iterator each = locations.iterator(); each.hasNext(); ) {
      deleteFile((String) each.next());
    }
  }

  private static String path(String location) {
    return location.startsWith("file:") ? java.net.URI.create(location).getPath() : location;
  }
}
