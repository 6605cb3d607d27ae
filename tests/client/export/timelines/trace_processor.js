// Perfetto's trace processor (WebAssembly, as a PyPI wheel ships it) under Node.
//
//     node trace_processor.js FOLDER TRACE < queries.json > results.json
//
// FOLDER holds engine_bundle.js and trace_processor.wasm; queries.json is a list of SQL texts. The result is
// a list of {columns, rows}; integers are texts, since JSON has no 64 bit. A refused query is an
// error on stderr and exit status 1.
//
// The bundle is a web worker: it gets what it uses of one, and none of what would tell it that this is Node.
// Requests and replies are frames of a stream, `0a LENGTH message` (TraceProcessorRpcStream of Perfetto's
// trace_processor.proto).
'use strict';
const fs = require('fs');
const path = require('path');
const [folder, trace] = process.argv.slice(2);

const APPEND = 1, FINALIZE = 2, QUERY = 3;

function varint(number) {
  const bytes = [];
  for (; number > 127; number = Math.floor(number / 128)) bytes.push(number % 128 + 128);
  return Buffer.from([...bytes, number]);
}

function field(number, value) {
  if (typeof value === 'number') return Buffer.concat([varint(number * 8), varint(value)]);
  return Buffer.concat([varint(number * 8 + 2), varint(value.length), value]);
}

// Of a message: [number, value] for each field; varints are BigInt, all else Buffers.
function* fields(data) {
  let at = 0;
  const number = () => {
    let value = 0n;
    for (let shift = 0n; ; shift += 7n) {
      const byte = data[at++];
      value |= BigInt(byte & 127) << shift;
      if (byte < 128) return value;
    }
  };
  while (at < data.length) {
    const tag = Number(number());
    if (tag % 8 === 0) {
      yield [tag >> 3, number()];
      continue;
    }
    const size = tag % 8 === 1 ? 8 : tag % 8 === 5 ? 4 : Number(number());
    yield [tag >> 3, data.subarray(at, at += size)];
  }
}

function varints(data) {
  const numbers = [];
  let value = 0n, shift = 0n;
  for (const byte of data) {
    value |= BigInt(byte & 127) << shift;
    shift += 7n;
    if (byte < 128) {
      numbers.push(BigInt.asIntN(64, value));
      value = shift = 0n;
    }
  }
  return numbers;
}

// Cells of a batch: their kinds, and a queue of values for each kind.
function cells(batch) {
  const kinds = [], integers = [], doubles = [], blobs = [];
  let texts = [];
  for (const [number, data] of fields(batch)) {
    if (number === 1) kinds.push(...varints(data));
    else if (number === 2) integers.push(...varints(data));
    else if (number === 3) for (let i = 0; i < data.length; i += 8) doubles.push(data.readDoubleLE(i));
    else if (number === 4) blobs.push(data.toString('hex'));
    else if (number === 5) texts = data.toString('utf8').split('\0');
  }
  const next = {
    1: () => null,
    2: () => String(integers.shift()),
    3: () => doubles.shift(),
    4: () => texts.shift(),
    5: () => blobs.shift(),
  };
  return kinds.map((kind) => next[Number(kind)]());
}

function fail(text) {
  process.stderr.write(`${text}\n`);
  process.exit(1);
}

let sequence = 0;
const pending = [];
const port = {
  postMessage(message) {
    for (const [, reply] of fields(Buffer.from(message))) pending.shift()(reply);
  },
};

function request(method, ...content) {
  const body = Buffer.concat([field(1, sequence++), field(2, method), ...content]);
  return new Promise((resolve) => {
    pending.push(resolve);
    port.onmessage({data: new Uint8Array(field(1, body))});
  });
}

// A query may be answered in several messages; the last batch says that it is the last.
async function query(sql) {
  const result = {columns: [], rows: []};
  const all = [];
  const body = Buffer.concat([field(1, sequence++), field(2, QUERY), field(103, field(1, Buffer.from(sql)))]);
  await new Promise((resolve) => {
    const take = (reply) => {
      let last = false;
      for (const [number, answer] of fields(reply)) {
        if (number !== 203) continue;
        for (const [part, data] of fields(answer)) {
          if (part === 1) result.columns.push(data.toString('utf8'));
          else if (part === 2 && data.length) fail(`${sql}: ${data.toString('utf8')}`);
          else if (part === 3) {
            all.push(...cells(data));
            for (const [number, value] of fields(data)) if (number === 6 && value) last = true;
          }
        }
      }
      if (last) resolve();
      else pending.unshift(take);
    };
    pending.push(take);
    port.onmessage({data: new Uint8Array(field(1, body))});
  });
  const width = result.columns.length;
  for (let i = 0; i < all.length; i += width) result.rows.push(all.slice(i, i + width));
  return result;
}

async function start() {
  globalThis.self = globalThis;
  globalThis.WorkerGlobalScope = function () {};
  globalThis.importScripts = () => {};
  globalThis.location = {href: 'http://localhost/engine_bundle.js'};
  globalThis.XMLHttpRequest = class {
    open(_, url) { this.file = path.basename(String(url)); }
    send() {
      const data = fs.readFileSync(path.join(folder, this.file));
      this.response = data.buffer.slice(data.byteOffset, data.byteOffset + data.length);
      this.status = 200;
      if (this.onload) this.onload();
    }
  };
  globalThis.fetch = undefined;
  const bundle = fs.readFileSync(path.join(folder, 'engine_bundle.js'), 'utf8');
  new Function('process', 'require', 'module', bundle)();
  globalThis.onmessage({data: port});
  for (let tries = 0; !port.onmessage; tries++) {
    if (tries > 3000) fail('the trace processor did not start');
    await new Promise((resolve) => setTimeout(resolve, 10));
  }
}

async function main() {
  console.log = console.info = console.debug = console.warn = console.error = () => {};
  await start();
  const data = fs.readFileSync(trace);
  for (let at = 0; at < data.length; at += 1 << 20) {
    const reply = await request(APPEND, field(101, data.subarray(at, at + (1 << 20))));
    for (const [number, answer] of fields(reply)) {
      if (number !== 201) continue;
      for (const [part, text] of fields(answer)) if (part === 2) fail(text.toString('utf8'));
    }
  }
  await request(FINALIZE);
  const results = [];
  for (const sql of JSON.parse(fs.readFileSync(0, 'utf8'))) results.push(await query(sql));
  fs.writeSync(1, JSON.stringify(results));
  process.exit(0);
}

main();
