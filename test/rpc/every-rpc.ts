/** Every RPC, taken from the generated code, so that tests of all RPCs cannot leave out a new one. */

import { readdir } from "node:fs/promises";
import path from "node:path";
import type {
  DescMessage,
  DescMethod,
  DescMethodStreaming,
  DescMethodUnary,
  DescService,
  MessageInitShape,
} from "@bufbuild/protobuf";
import type { Transport } from "@connectrpc/connect";

/** The services of all protos. */
const all = await generatedServices();

/** Services that are called only within the process, without credentials. */
export const internalServices = all.filter(isInternal);

export const rpcs = all
  .filter((service) => !isInternal(service))
  .flatMap(({ typeName, methods }) =>
    methods.map((method) => ({ name: `${typeName}/${method.name}`, method })),
  );

async function generatedServices(): Promise<DescService[]> {
  const folder = path.join(import.meta.dirname, "../../src/gen/proto");
  const files = (await readdir(folder, { recursive: true })).filter((file) => file.endsWith("_pb.ts"));
  const modules = await Promise.all(files.map((file) => import(path.join(folder, file))));
  const exported: unknown[] = modules.flatMap((module) => Object.values(module));
  return exported.filter(isService);
}

function isService(value: unknown): value is DescService {
  return typeof value === "object" && value !== null && "kind" in value && value.kind === "service";
}

function isInternal({ typeName }: DescService): boolean {
  return typeName.startsWith("phoneproof.internal.");
}

export const isUnary = (method: DescMethod): method is DescMethodUnary => method.methodKind === "unary";
const isStreaming = (method: DescMethod): method is DescMethodStreaming => method.methodKind !== "unary";

/** Sends one request. Returns the first message, or undefined if a stream ends without one. */
export async function callOnce(
  transport: Transport,
  method: DescMethod,
  request: MessageInitShape<DescMessage>,
): Promise<unknown> {
  if (isUnary(method))
    return (await transport.unary(method, undefined, undefined, undefined, request)).message;
  if (!isStreaming(method)) throw new Error(`${method.name} is of no known kind`);
  const leave = new AbortController();
  const { message } = await transport.stream(method, leave.signal, undefined, undefined, oneOf(request));
  for await (const first of message) {
    leave.abort();
    return first;
  }
  return undefined;
}

async function* oneOf<T>(value: T): AsyncIterable<T> {
  yield value;
}
