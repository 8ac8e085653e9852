// The drivers: pg in pure JavaScript, and pg on libpq (pg-native).

import { Readable } from 'node:stream';
import { pipeline } from 'node:stream/promises';

import pg from 'pg';
import { from as copyFrom } from 'pg-copy-streams';

const WATCH_MS = 1000;
const COPY_CHUNK_CHARACTERS = 65536;
const COPY_ESCAPES = { '\\': '\\\\', '\t': '\\t', '\n': '\\n', '\r': '\\r' };

export class Unavailable extends Error {}

/** Opens `count` clients, gives them to `work`, and closes them whatever happens. */
export async function withClients(driver, dsn, count, work) {
  const Client = driver.client();
  const opening = Array.from({ length: count }, () => open(Client, dsn));
  const outcomes = await Promise.allSettled(opening);
  const clients = outcomes.filter(({ status }) => status === 'fulfilled').map(({ value }) => value);
  try {
    const failed = outcomes.find(({ status }) => status === 'rejected');
    if (failed) {
      throw failed.reason;
    }
    return await work(clients);
  } finally {
    await Promise.all(clients.map((client) => client.end()));
  }
}

async function open(Client, dsn) {
  const client = new Client({ connectionString: dsn });
  // A lost connection is also an event, which would end the program. Its running or next query fails, and tells.
  client.on('error', () => {});
  await client.connect();
  if (client.native) {
    watch(client);
  }
  return client;
}

// The libpq package leaves out the poll event of a connection that was reset (on_io_readable in its connection.cc), and
// the query would wait for ever. A read now and then finds the error.
function watch(client) {
  const timer = setInterval(() => client.native.pq.emit('readable'), WATCH_MS);
  client.once('end', () => clearInterval(timer));
}

function nativeClient() {
  try {
    // Null where the package is missing; it throws where the package is there and its library was not built.
    return pg.native.Client;
  } catch {
    throw new Unavailable(
      "pg-native is not built: install libpq's headers (on Debian: apt install libpq-dev) and a C++ compiler, " +
        'then run again',
    );
  }
}

export async function select(client, { sql, arguments: values }) {
  return client.query({ name: 'framehaul_fetch', text: sql, values });
}

async function fetch(client, shape) {
  const { rows } = await select(client, shape);
  return rows.length;
}

// The statement is made from names as they stand: who sends the request also writes its SQL.
async function insert(client, { table, columns, row, count }) {
  const places = columns.map((_, index) => `$${index + 1}`);
  const text = `INSERT INTO ${table} (${columns.join(', ')}) VALUES (${places.join(', ')})`;
  let inserted = 0;
  // No ROLLBACK: a failed query ends the request, and with it the connection and its transaction.
  await client.query('BEGIN');
  for (let index = 0; index < count; index += 1) {
    const { rowCount } = await client.query({ name: 'framehaul_insert', text, values: row });
    inserted += rowCount;
  }
  await client.query('COMMIT');
  return inserted;
}

async function copy(client, { table, columns, row, count }) {
  const stream = client.query(copyFrom(`COPY ${table} (${columns.join(', ')}) FROM STDIN`));
  await pipeline(Readable.from(copyChunks(row, count)), stream);
  return stream.rowCount;
}

// Chunks of the size in which Node reads a file: one for each line would cost far more than the line.
function* copyChunks(row, count) {
  let chunk = '';
  for (let index = 0; index < count; index += 1) {
    chunk += `${row.map(copyField).join('\t')}\n`;
    if (chunk.length >= COPY_CHUNK_CHARACTERS) {
      yield Buffer.from(chunk);
      chunk = '';
    }
  }
  if (chunk) {
    yield Buffer.from(chunk);
  }
}

function copyField(value) {
  // The text that pg also sends for a parameter of INSERT.
  const text = pg.utils.prepareValue(value);
  return text === null ? '\\N' : text.replace(/[\\\t\n\r]/g, (character) => COPY_ESCAPES[character]);
}

async function nativeCopy() {
  throw new Unavailable("pg's native client has no interface for COPY ... IN; use pg with pg-copy-streams");
}

export const drivers = {
  pg: { client: () => pg.Client, queries: { fetch, copy, insert } },
  pg_native: { client: nativeClient, queries: { fetch, copy: nativeCopy, insert } },
};
