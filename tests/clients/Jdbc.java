// What programs do by JDBC, one step a line: its name and what came of it. Arguments: URL, user,
// password. The same lines come from a server and from a node.

import java.math.BigDecimal;
import java.sql.*;
import java.util.*;

public class Jdbc {
    interface Step {
        Object run() throws Exception;
    }

    static void step(String name, Step what) {
        try {
            System.out.println(name + " | " + what.run());
        } catch (SQLException e) {
            System.out.println(name + " | " + e.getSQLState() + " " + e.getMessage().split("\n")[0]);
        } catch (Exception e) {
            System.out.println(name + " | " + e);
        }
    }

    static String rows(ResultSet found, String... columns) throws SQLException {
        List<String> out = new ArrayList<>();
        ResultSetMetaData meta = found.getMetaData();
        while (found.next()) {
            List<String> row = new ArrayList<>();
            if (columns.length == 0) {
                for (int i = 1; i <= meta.getColumnCount(); i++) row.add(found.getString(i));
            }
            for (String column : columns) row.add(found.getString(column));
            out.add(row.toString());
        }
        found.close();
        return out.toString();
    }

    static String types(ResultSetMetaData meta) throws SQLException {
        List<String> out = new ArrayList<>();
        for (int i = 1; i <= meta.getColumnCount(); i++) {
            out.add(meta.getColumnLabel(i) + " " + meta.getColumnTypeName(i));
        }
        return out.toString();
    }

    public static void main(String[] args) throws Exception {
        Properties login = new Properties();
        login.setProperty("user", args[1]);
        login.setProperty("password", args[2]);
        try (Connection c = DriverManager.getConnection(args[0], login)) {
            statements(c);
            changes(c);
            portions(c);
            session(c);
            metadata(c.getMetaData());
        }
    }

    static void statements(Connection c) throws Exception {
        step("simple", () -> rows(c.createStatement().executeQuery("SELECT * FROM goods ORDER BY id")));
        PreparedStatement byId = c.prepareStatement("SELECT * FROM goods WHERE id = ?");
        for (int i = 0; i < 8; i++) { // from the fifth on prepared by the server, and in binary
            int id = i % 3 + 1;
            step("prepared " + i, () -> {
                byId.setInt(1, id);
                return rows(byId.executeQuery());
            });
        }
        step("types", () -> types(byId.getMetaData()));
        step("parameters", () -> byId.getParameterMetaData().getParameterTypeName(1));
        PreparedStatement mixed = c.prepareStatement(
            "SELECT id FROM goods WHERE name <> ? AND sold > ? AND price < ? AND added > ?"
            + " AND at < ? AND ok = ? ORDER BY id LIMIT ?");
        for (int i = 0; i < 7; i++) {
            step("mixed " + i, () -> {
                mixed.setString(1, "it's");
                mixed.setLong(2, -5L);
                mixed.setBigDecimal(3, new BigDecimal("100.25"));
                mixed.setDate(4, java.sql.Date.valueOf("2000-01-01"));
                mixed.setTimestamp(5, Timestamp.valueOf("2030-01-01 00:00:00"));
                mixed.setBoolean(6, true);
                mixed.setInt(7, 10);
                return rows(mixed.executeQuery());
            });
        }
        PreparedStatement any = c.prepareStatement("SELECT id FROM goods WHERE id = ANY (?) ORDER BY id");
        step("array", () -> {
            any.setArray(1, c.createArrayOf("int4", new Integer[] {1, 3}));
            return rows(any.executeQuery());
        });
        step("values", () -> rows(c.createStatement().executeQuery("SELECT 1, 'a'::text, true, 1.5, now() IS NULL")));
        step("unknown table", () -> rows(c.createStatement().executeQuery("SELECT * FROM nowhere")));
        step("wrong value", () -> {
            PreparedStatement wrong = c.prepareStatement("SELECT id FROM goods WHERE id = ?::int");
            wrong.setString(1, "x");
            return rows(wrong.executeQuery());
        });
        step("goes on", () -> rows(c.createStatement().executeQuery("SELECT count(*) FROM goods")));
    }

    static void changes(Connection c) throws Exception {
        PreparedStatement insert = c.prepareStatement(
            "INSERT INTO goods (id, name, price, sold, ok, added, at) VALUES (?, ?, ?, ?, ?, ?, ?)");
        step("insert", () -> {
            insert.setInt(1, 70);
            insert.setString(2, "back\\slash 'quoted' é");
            insert.setBigDecimal(3, new BigDecimal("-1234.50"));
            insert.setLong(4, Long.MIN_VALUE);
            insert.setBoolean(5, false);
            insert.setDate(6, java.sql.Date.valueOf("1999-12-31"));
            insert.setTimestamp(7, Timestamp.valueOf("1999-12-31 23:59:59.999999"));
            return insert.executeUpdate();
        });
        step("nulls", () -> {
            insert.setInt(1, 71);
            insert.setNull(2, Types.VARCHAR);
            insert.setNull(3, Types.NUMERIC);
            insert.setNull(4, Types.BIGINT);
            insert.setNull(5, Types.BOOLEAN);
            insert.setNull(6, Types.DATE);
            insert.setNull(7, Types.TIMESTAMP);
            return insert.executeUpdate();
        });
        step("inserted", () -> rows(c.createStatement().executeQuery("SELECT * FROM goods WHERE id >= 70 ORDER BY id")));
        PreparedStatement update = c.prepareStatement("UPDATE goods SET name = ?, sold = ? WHERE id = ?");
        step("batch", () -> {
            for (int i = 70; i < 73; i++) {
                update.setString(1, "name " + i);
                update.setInt(2, i);
                update.setInt(3, i);
                update.addBatch();
            }
            return Arrays.toString(update.executeBatch());
        });
        step("updated", () -> rows(c.createStatement().executeQuery("SELECT id, name, sold FROM goods WHERE id >= 70 ORDER BY id")));
        step("delete", () -> c.createStatement().executeUpdate("DELETE FROM goods WHERE id >= 70"));
    }

    static void portions(Connection c) throws Exception {
        c.setAutoCommit(false);
        step("portions", () -> {
            Statement s = c.createStatement();
            s.setFetchSize(2);
            return rows(s.executeQuery("SELECT id FROM goods ORDER BY id"));
        });
        step("catalog portions", () -> {
            Statement s = c.createStatement();
            s.setFetchSize(2);
            return rows(s.executeQuery("SELECT typname FROM pg_type WHERE oid < 24 ORDER BY oid"));
        });
        step("max rows", () -> {
            Statement s = c.createStatement();
            s.setMaxRows(1);
            return rows(s.executeQuery("SELECT id FROM goods ORDER BY id"));
        });
        step("commit", () -> {
            c.commit();
            return "";
        });
        step("failed block", () -> rows(c.createStatement().executeQuery("SELECT nothing")));
        step("in it", () -> rows(c.createStatement().executeQuery("SELECT 1")));
        step("rollback", () -> {
            c.rollback();
            return rows(c.createStatement().executeQuery("SELECT 1"));
        });
        c.commit();
        c.setAutoCommit(true);
    }

    static void session(Connection c) throws Exception {
        step("valid", () -> c.isValid(5));
        step("schema", c::getSchema);
        step("catalog", c::getCatalog);
        step("isolation", () -> {
            int before = c.getTransactionIsolation();
            c.setTransactionIsolation(Connection.TRANSACTION_REPEATABLE_READ);
            int then = c.getTransactionIsolation();
            c.setTransactionIsolation(Connection.TRANSACTION_READ_COMMITTED);
            return before + " " + then;
        });
        step("read only", () -> {
            c.setReadOnly(true);
            String rows = rows(c.createStatement().executeQuery("SELECT id FROM goods WHERE id = 1"));
            c.setReadOnly(false);
            return rows;
        });
        step("application", () -> {
            c.setClientInfo("ApplicationName", "clients");
            return rows(c.createStatement().executeQuery("SHOW application_name"));
        });
        step("set", () -> {
            c.createStatement().execute("SET work_mem = '64MB'; SET jit = off");
            return rows(c.createStatement().executeQuery("SHOW work_mem"));
        });
    }

    static void metadata(DatabaseMetaData m) throws Exception {
        step("product", () -> m.getDatabaseProductName() + " " + m.getDatabaseMajorVersion());
        step("tables", () -> rows(m.getTables(null, "public", "%", new String[] {"TABLE", "PARTITIONED TABLE"}),
            "TABLE_CAT", "TABLE_SCHEM", "TABLE_NAME", "TABLE_TYPE", "REMARKS"));
        step("all tables", () -> rows(m.getTables(null, "public", "goods", null), "TABLE_NAME"));
        step("columns", () -> rows(m.getColumns(null, "public", "goods", "%"), "COLUMN_NAME", "DATA_TYPE", "TYPE_NAME",
            "COLUMN_SIZE", "DECIMAL_DIGITS", "NULLABLE", "ORDINAL_POSITION", "IS_NULLABLE", "IS_AUTOINCREMENT"));
        step("primary key", () -> rows(m.getPrimaryKeys(null, "public", "goods"), "COLUMN_NAME", "KEY_SEQ", "PK_NAME"));
        step("indexes", () -> rows(m.getIndexInfo(null, "public", "goods", false, false), "INDEX_NAME", "NON_UNIQUE", "COLUMN_NAME", "ASC_OR_DESC"));
        step("imported", () -> rows(m.getImportedKeys(null, "public", "goods")));
        step("exported", () -> rows(m.getExportedKeys(null, "public", "goods")));
        step("cross", () -> rows(m.getCrossReference(null, "public", "goods", null, "public", "goods")));
        step("row identifier", () -> rows(m.getBestRowIdentifier(null, "public", "goods", 0, true), "COLUMN_NAME", "TYPE_NAME"));
        step("version columns", () -> rows(m.getVersionColumns(null, "public", "goods"), "COLUMN_NAME"));
        step("schemas", () -> rows(m.getSchemas(null, "public")));
        step("catalogs", () -> rows(m.getCatalogs()).contains("lake"));
        step("table types", () -> rows(m.getTableTypes()));
        step("procedures", () -> rows(m.getProcedures(null, "public", "%")));
        step("functions", () -> rows(m.getFunctions(null, "public", "%")));
        step("function columns", () -> rows(m.getFunctionColumns(null, "public", "%", "%")));
        step("types", () -> rows(m.getUDTs(null, "public", "%", null)));
        step("type info", () -> {
            String all = rows(m.getTypeInfo(), "TYPE_NAME");
            return all.contains("[int4]") && all.contains("[timestamptz]");
        });
        step("privileges", () -> rows(m.getTablePrivileges(null, "public", "goods"), "PRIVILEGE"));
        step("client info", () -> rows(m.getClientInfoProperties(), "NAME"));
        step("names", () -> m.getMaxColumnNameLength());
        step("keywords", () -> m.getSQLKeywords().contains("vacuum"));
    }
}
