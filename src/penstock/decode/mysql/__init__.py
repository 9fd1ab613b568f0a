"""Row images of MySQL's and MariaDB's binlog."""
