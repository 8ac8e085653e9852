// The drivers: pg in pure JavaScript, and pg on libpq (pg-native).

import pg from 'pg';

const WATCH_MS = 1000;

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

export const drivers = {
  pg: { client: () => pg.Client },
  pg_native: { client: nativeClient },
};
