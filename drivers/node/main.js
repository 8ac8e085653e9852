// Answers each request line on standard input with one line on standard output; see ../README.md.

import { createInterface } from 'node:readline';

import { measure } from './load.js';
import { drivers, select, Unavailable, withClients } from './pg.js';

async function check(driver, { dsn, shape }) {
  return withClients(driver, dsn, 1, async ([client]) => {
    if (shape.kind === 'fetch') {
      return { rows: plainRows(await select(client, shape)) };
    }
    return { rows: await queryOf(driver, shape)(client, shape) };
  });
}

async function load(driver, request) {
  const { dsn, shape, connections } = request;
  const query = queryOf(driver, shape);
  return withClients(driver, dsn, connections, (clients) =>
    measure(
      clients.map((client) => () => query(client, shape)),
      request,
    ),
  );
}

function queryOf(driver, { kind }) {
  if (!Object.hasOwn(driver.queries, kind)) {
    throw new Error(`there is no kind of shape called ${kind}`);
  }
  return driver.queries[kind];
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

const ACTIONS = { check, measure: load };

function parse(line) {
  try {
    return JSON.parse(line);
  } catch {
    // The parser's own message quotes the line, and a password can stand there.
    throw new Error('the request is not JSON');
  }
}

async function answer(driver, line) {
  try {
    const request = parse(line);
    if (!Object.hasOwn(ACTIONS, request.do)) {
      throw new Error(`there is nothing to do called ${request.do}`);
    }
    return await ACTIONS[request.do](driver, request);
  } catch (error) {
    return { [error instanceof Unavailable ? 'unavailable' : 'error']: oneLine(error) };
  }
}

// A refused connection to a name with several addresses has a code and no message.
function oneLine(error) {
  return (error.message || error.code || String(error)).replace(/\s+/g, ' ').trim();
}

async function main(name) {
  if (!Object.hasOwn(drivers, name)) {
    process.stderr.write(`usage: node main.js <driver>, one of: ${Object.keys(drivers).join(', ')}\n`);
    process.exitCode = 2;
    return;
  }
  for await (const line of createInterface({ input: process.stdin })) {
    process.stdout.write(`${JSON.stringify(await answer(drivers[name], line))}\n`);
  }
}

await main(process.argv[2] ?? '');
