import { type DescFile, type DescService, toBinary } from "@bufbuild/protobuf";
import { FileDescriptorProtoSchema } from "@bufbuild/protobuf/wkt";
import { Code, type ConnectRouter } from "@connectrpc/connect";
import { inTimeSlices } from "../core/time-slices.ts";
import { ServerReflection } from "../gen/proto/grpc/reflection/v1/reflection_pb.ts";

/**
 * No name is longer. Unauthenticated clients may ask, and each part of a name takes time in proportion to the name's
 * length.
 */
const longestName = 255;

/** grpc.reflection.v1, from which `buf curl` and `grpcurl` learn the services without having their protos. */
export function reflectionRoutes(
  router: ConnectRouter,
  services: readonly DescService[],
  otherFiles: readonly DescFile[],
): void {
  const files = new Map<string, DescFile>();
  const filesBySymbol = new Map<string, DescFile>();
  const allServices = [...services, ServerReflection];
  for (const { file } of allServices) index(file);
  for (const file of otherFiles) index(file);

  function index(file: DescFile): void {
    const name = `${file.name}.proto`;
    if (files.has(name)) return;
    files.set(name, file);
    for (const { typeName } of [...file.messages, ...file.enums, ...file.services]) {
      filesBySymbol.set(typeName, file);
    }
    for (const dependency of file.dependencies) index(dependency);
  }

  /** A method or a nested type is found by the symbol that contains it. */
  function fileOf(symbol: string): DescFile | undefined {
    if (symbol.length > longestName) return undefined;
    for (let name = symbol; name !== ""; name = name.slice(0, Math.max(0, name.lastIndexOf(".")))) {
      const file = filesBySymbol.get(name);
      if (file) return file;
    }
    return undefined;
  }

  const descriptors = new Map<DescFile, Uint8Array>();

  function descriptorOf(file: DescFile): Uint8Array {
    const known = descriptors.get(file);
    if (known !== undefined) return known;
    const descriptor = toBinary(FileDescriptorProtoSchema, file.proto);
    descriptors.set(file, descriptor);
    return descriptor;
  }

  /** A file with everything it imports, which saves the client a request for each. */
  function descriptorsOf(file: DescFile): Uint8Array[] {
    const found = new Set<DescFile>();
    const collect = (next: DescFile) => {
      if (found.has(next)) return;
      found.add(next);
      next.dependencies.forEach(collect);
    };
    collect(file);
    return [...found].map(descriptorOf);
  }

  router.service(ServerReflection, {
    async *serverReflectionInfo(requests) {
      for await (const request of inTimeSlices(requests, ServerReflection)) {
        const answer = (file: DescFile | undefined, what: string) =>
          file === undefined
            ? refused(Code.NotFound, `${what} is not known to this service`)
            : ({
                case: "fileDescriptorResponse",
                value: { fileDescriptorProto: descriptorsOf(file) },
              } as const);
        const { messageRequest } = request;
        const base = { validHost: request.host, originalRequest: request };
        switch (messageRequest.case) {
          case "listServices": {
            const service = allServices.map(({ typeName }) => ({ name: typeName }));
            yield { ...base, messageResponse: { case: "listServicesResponse", value: { service } } };
            break;
          }
          case "fileByFilename":
            yield { ...base, messageResponse: answer(files.get(messageRequest.value), messageRequest.value) };
            break;
          case "fileContainingSymbol":
            yield { ...base, messageResponse: answer(fileOf(messageRequest.value), messageRequest.value) };
            break;
          case undefined:
            yield { ...base, messageResponse: refused(Code.InvalidArgument, "the request asks for nothing") };
            break;
          default:
            yield {
              ...base,
              messageResponse: refused(Code.Unimplemented, "no message of this service has extensions"),
            };
        }
      }
    },
  });
}

function refused(errorCode: Code, errorMessage: string) {
  return { case: "errorResponse", value: { errorCode, errorMessage } } as const;
}
