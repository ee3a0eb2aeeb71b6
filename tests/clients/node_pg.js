// What programs do with node-pg, one step an item of the printed list. Argument: the port.

const { Client, types } = require("pg");

async function main() {
  const client = new Client({ host: "127.0.0.1", port: Number(process.argv[2]), user: "lake", database: "lake" });
  await client.connect();
  const out = [];
  const step = async (text, values) => {
    try {
      const found = await client.query(text, values);
      out.push([text, found.command, found.rowCount, found.rows]);
    } catch (error) {
      out.push([text, error.code, error.message]);
    }
  };
  await step("SELECT * FROM goods ORDER BY id");
  await step("SELECT * FROM goods WHERE id = $1", [1]);
  await step("SELECT id FROM goods WHERE name LIKE $1 AND ok = $2 AND sold > $3", ["i%", true, 1]);
  await step("SELECT id FROM goods WHERE id = ANY($1) ORDER BY id", [[1, 3]]);
  await step({ name: "by id", text: "SELECT name FROM goods WHERE id = $1", values: [2] });
  await step({ name: "by id", text: "SELECT name FROM goods WHERE id = $1", values: [3] });
  await step("INSERT INTO goods (id, name, price) VALUES ($1, $2, $3)", [70, "it's", "9.99"]);
  await step("UPDATE goods SET name = $1 WHERE id = $2", [null, 70]);
  await step("SELECT * FROM goods WHERE id = 70");
  await step("DELETE FROM goods WHERE id = $1", [70]);
  await step("SELECT table_name FROM information_schema.tables WHERE table_schema = $1", ["public"]);
  await step("SELECT nothing FROM goods");
  await step("SELECT 1 AS one; SELECT 2 AS two");
  await client.end();
  console.log(JSON.stringify(out));
}

main();
