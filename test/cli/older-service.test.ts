import { create, toBinary } from "@bufbuild/protobuf";
import { expect, test } from "vitest";
import {
  CreateServiceTokenResponseSchema,
  ServiceTokenScope,
} from "../../src/gen/proto/phoneproof/v1/service_token_pb.ts";
import {
  GetVerificationResponseSchema,
  VerificationStatus,
} from "../../src/gen/proto/phoneproof/v1/verification_pb.ts";
import { run } from "./command.ts";
import { type GrpcPeer, startVersion, unknownMethodRequestId } from "./grpc-peer.ts";

const towardsPeer = ({ address }: GrpcPeer) => ({ PHONEPROOF_ADDRESS: address, PHONEPROOF_TOKEN: "x" });
const older = (what: string) =>
  expect.stringMatching(
    new RegExp(`the service at \\S+ is an older version than this command, and ${what}: upgrade it`),
  );

test.for([
  { what: "that leaves the name of a new token out is named", named: ["--name", "dashboard"] },
  { what: "creates a token without a name like any other", named: [] },
])("a service older than the command $what", async ({ named }) => {
  const made = create(CreateServiceTokenResponseSchema, {
    serviceToken: { id: "tok_01kaex4mpyf2xbtyt1s6vdr4e9", scope: ServiceTokenScope.READ },
    secret: "pp_svc_x",
  });
  const peer = await startVersion({
    "phoneproof.v1.ServiceTokenService/CreateServiceToken": toBinary(CreateServiceTokenResponseSchema, made),
  });
  const command = ["token", "create", "--scope", "read", ...named];
  const said = older("created the token without its name");

  const shown = await run(command, towardsPeer(peer));
  expect(shown).toMatchObject({ code: 0, stdout: expect.stringContaining("pp_svc_x") });
  expect(shown.stderr).toEqual(named.length > 0 ? said : "");

  const { code, stdout, stderr } = await run([...command, "--json"], towardsPeer(peer));
  expect({ code, made: JSON.parse(stdout) }).toMatchObject({
    code: 0,
    made: { name: "", token: "pp_svc_x" },
  });
  expect(stderr && JSON.parse(stderr)).toEqual(
    named.length > 0 ? { error: expect.objectContaining({ code: "unimplemented", message: said }) } : "",
  );
});

test("a service older than histories shows its verifications, and is named", async () => {
  const verification = { id: "vrf_01kaex4mpyf2xbtyt1s6vdr4e9", status: VerificationStatus.PENDING };
  const found = create(GetVerificationResponseSchema, { verification });
  const peer = await startVersion({
    "phoneproof.v1.VerificationService/GetVerification": toBinary(GetVerificationResponseSchema, found),
  });
  const { code, stdout, stderr } = await run(
    ["verification", "show", verification.id, "--json"],
    towardsPeer(peer),
  );
  expect({ code, shown: JSON.parse(stdout), said: JSON.parse(stderr) }).toMatchObject({
    code: 0,
    shown: { id: verification.id, status: "pending", history: null },
    said: {
      error: {
        code: "unimplemented",
        message: older("has no histories of verifications"),
        request_id: unknownMethodRequestId,
      },
    },
  });
});
