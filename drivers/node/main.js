// Runs one driver once: a JSON request on standard input, a JSON answer on standard output; see ../README.md.

import { text } from 'node:stream/consumers';

import { measure } from './load.js';
import { drivers, select, Unavailable, withClients } from './pg.js';

const NOT_OFFERED = 3;

async function answer(driver, { dsn, shape, connections, warmup_seconds, seconds }) {
  const checked = await withClients(driver, dsn, 1, async ([client]) => plainRows(await select(client, shape)));
  const fetch = async (client) => (await select(client, shape)).rows.length;
  const figures = await withClients(driver, dsn, connections, (clients) =>
    measure(clients.map((client) => () => fetch(client)), warmup_seconds, seconds),
  );
  return { ...figures, checked };
}

function plainRows({ fields, rows }) {
  return rows.map((row) => fields.map(({ name }) => plain(row[name])));
}

function plain(value) {
  if (Array.isArray(value)) {
    return value.map(plain);
  }
  return Buffer.isBuffer(value) ? value.toString('hex') : value;
}

// A refused connection to a name with several addresses has a code and no message.
function oneLine(error) {
  return (error.message || error.code || String(error)).replace(/\s+/g, ' ').trim();
}

async function main(name) {
  if (!Object.hasOwn(drivers, name)) {
    process.stderr.write(`usage: node main.js <driver>, one of: ${Object.keys(drivers).join(', ')}\n`);
    return 2;
  }
  try {
    process.stdout.write(JSON.stringify(await answer(drivers[name], JSON.parse(await text(process.stdin)))));
    return 0;
  } catch (error) {
    process.stderr.write(`${oneLine(error)}\n`);
    return error instanceof Unavailable ? NOT_OFFERED : 1;
  }
}

process.exitCode = await main(process.argv[2] ?? '');
