// Node's gRPC, by @grpc/grpc-js, as a client of a registration socket.
'use strict';

const assert = require('node:assert');
const grpc = require('@grpc/grpc-js');
const loader = require('@grpc/proto-loader');

const [socket, name, endpoint, protos] = process.argv.slice(2);
const file = 'pluginregistration/v1/registration.proto';
const definition = loader.loadSync(file, { includeDirs: [protos], keepCase: true });
const { GetInfo, NotifyRegistrationStatus } = definition['pluginregistration.Registration'];

const SERVICE = '/pluginregistration.Registration/';
const INFO = { type: 'CSIPlugin', name, endpoint, supported_versions: ['1.0.0'] };
const MIB = 1 << 20;
const { UNIMPLEMENTED, INTERNAL, RESOURCE_EXHAUSTED } = grpc.status;
// Ends a client that hangs.
setTimeout(() => process.exit(1), 120_000).unref();

async function withChannel(options, use) {
  // Else channels to one target share a connection.
  const all = { 'grpc.use_local_subchannel_pool': 1, ...options };
  const target = options.target ?? `unix:${socket}`;
  const channel = new grpc.Client(target, grpc.credentials.createInsecure(), all);
  try {
    await use(channel);
  } finally {
    channel.close();
  }
}

function call(channel, path, request, { metadata, seconds = 10, host } = {}) {
  const options = { deadline: seconds === null ? Infinity : Date.now() + seconds * 1000, host };
  const same = (octets) => octets;
  return new Promise((resolve, reject) => {
    const done = (error, response) => (error ? reject(error) : resolve(response));
    channel.makeUnaryRequest(
      path, same, same, request, metadata ?? new grpc.Metadata(), options, done);
  });
}

function status(error = '') {
  return NotifyRegistrationStatus.requestSerialize({ plugin_registered: true, error });
}

function statusOf(size) {
  const head = status('x'.repeat(size / 2)).length - Math.floor(size / 2);
  return status('x'.repeat(size - head));
}

async function getInfo(channel, options) {
  const info = await call(channel, GetInfo.path, Buffer.alloc(0), options);
  assert.deepStrictEqual({ ...GetInfo.responseDeserialize(info) }, INFO);
}

async function notify(channel, options) {
  const notified = await call(channel, NotifyRegistrationStatus.path, status(), options);
  assert.strictEqual(notified.length, 0);
}

async function register(channel, options) {
  await getInfo(channel, options);
  await notify(channel, options);
}

function refused(path, request, code, message = '', options = {}) {
  return () => withChannel(options, async (channel) => {
    const error = await call(channel, path, request).then(() => null, (error) => error);
    assert.ok(error?.code === code && error.details.startsWith(message), `${error}`);
    // The channel goes on.
    if (!Object.keys(options).length) await register(channel);
  });
}

const authority = (value) => () =>
  withChannel({ 'grpc.default_authority': value }, (channel) => register(channel));

const scenarios = {
  'one channel': () => withChannel({}, async (channel) => {
    await register(channel);
    await register(channel);
  }),
  'fresh channels': async () => {
    for (let i = 0; i < 10; i++) {
      await withChannel({}, (channel) => getInfo(channel));
      await withChannel({}, (channel) => notify(channel));
    }
  },
  'target unix:path': () => withChannel({ target: `unix:${socket}` }, register),
  'target unix:///path': () => withChannel({ target: `unix://${socket}` }, register),
  'authority of the raw path': authority(socket),
  'authority of the percent-encoded path': authority(encodeURIComponent(socket)),
  // As the channel's it would mean the default.
  'authority empty': () => withChannel({}, (channel) => register(channel, { host: '' })),
  'authority localhost': authority('localhost'),
  'authority a b': authority('a b'),
  'authority [::1': authority('[::1'),
  'authority %': authority('%'),
  'authority é': authority('é'),
  'authority of 200 characters': authority('x'.repeat(200)),
  'metadata': () => withChannel({}, async (channel) => {
    const metadata = new grpc.Metadata();
    metadata.add('x-text', 'a');
    metadata.add('x-text', 'b');
    metadata.add('x-long', 'c'.repeat(4096));
    metadata.add('x-bin', Buffer.from([0, 0xff]));
    await register(channel, { metadata });
  }),
  'deadlines': () => withChannel({}, async (channel) => {
    for (const seconds of [null, 5, 3600, 1_000_000]) await register(channel, { seconds });
  }),
  '100 calls at once': () => withChannel({}, async (channel) => {
    const calls = Array.from({ length: 50 }, () => [getInfo(channel), notify(channel)]);
    await Promise.all(calls.flat());
  }),
  'gzip': refused(NotifyRegistrationStatus.path, status('x'.repeat(4096)), UNIMPLEMENTED, '', {
    'grpc.default_compression_algorithm': grpc.compressionAlgorithms.gzip,
  }),
  'unknown method': refused(`${SERVICE}Nope`, Buffer.alloc(0), UNIMPLEMENTED,
    'unknown method Nope for service pluginregistration.Registration'),
  'unknown service': refused('/pluginregistration.Nope/Nope', Buffer.alloc(0), UNIMPLEMENTED,
    'unknown service pluginregistration.Nope'),
  'malformed method': refused('/nope', Buffer.alloc(0), UNIMPLEMENTED,
    'malformed method name: "/nope"'),
  'not protobuf': refused(GetInfo.path, Buffer.from([0xff]), INTERNAL),
  'not UTF-8': refused(NotifyRegistrationStatus.path,
    Buffer.from([0x08, 1, 0x12, 1, 0xff]), INTERNAL),
  '4 MiB': () => withChannel({}, async (channel) => {
    const request = statusOf(4 * MIB);
    assert.strictEqual(request.length, 4 * MIB);
    await call(channel, NotifyRegistrationStatus.path, request);
  }),
  '4 MiB + 1': refused(NotifyRegistrationStatus.path, statusOf(4 * MIB + 1), RESOURCE_EXHAUSTED,
    'grpc: received message larger than max ('),
};

(async () => {
  const peer = `grpc-js ${require('@grpc/grpc-js/package.json').version}`;
  for (const [scenario, run] of Object.entries(scenarios)) {
    const since = process.hrtime.bigint();
    let outcome = ['ok'];
    try {
      await run();
    } catch (error) {
      outcome = ['FAILED', `${error}`.replace(/\s+/g, ' ')];
    }
    const seconds = (Number(process.hrtime.bigint() - since) / 1e9).toFixed(3);
    const row = ['interop', peer, scenario, outcome[0], seconds, ...outcome.slice(1)];
    console.log(row.join('\t'));
  }
})();
