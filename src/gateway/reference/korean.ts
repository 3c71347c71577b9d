import type { ReferenceTexts } from "./texts.ts";

const timestamp = "밀리초까지의 UTC 시각, 2026-11-21T06:41:00.123Z";
const retriedCreation =
  "응답은 받지 못했어도 인증은 만들어졌을 수 있습니다. 같은 Idempotency-Key와 본문으로 다시 보내면 한 번만 만들어집니다.";

export const korean: ReferenceTexts = {
  language: "ko",
  path: "/docs/ko",
  otherLanguage: "한국어",
  title: "phoneproof API",
  introduction: [
    "이 사람이 정말 이 휴대전화를 가지고 있습니까? 사용자가 정해진 번호로 정해진 문구를 문자로 보내면, 통신망이 알려 주는 발신 번호가 증거가 됩니다. 프로그램용 문서는 [openapi.json](/openapi.json)에 있습니다.",
    "모든 호출은 가맹점 서버가 비밀 키로 합니다: `Authorization: Bearer <API_KEY>`. 어느 프로젝트의 어느 환경인지는 키로 정해집니다.",
  ],
  create: {
    heading: "인증 만들기",
    newKey: "<시도마다 새로>",
    about:
      "201로 응답합니다. 사용자에게 `destination`과 `sms_text`를 보여 주거나 `verification_url`을 여십시오. 응답을 받지 못했으면 같은 키와 본문으로 다시 보내십시오. 처음의 응답이 `Idempotent-Replayed: true`와 함께 다시 옵니다. 키는 24시간 동안 기억되며, 그동안 다른 본문과 함께 보내면 409로 응답합니다.",
    body: "본문",
    answer: "응답",
  },
  read: { heading: "인증 조회하기" },
  cancel: {
    heading: "인증 취소하기",
    about:
      "조회와 같은 응답이 옵니다. 대기 중인 인증만 취소할 수 있습니다. 이미 취소된 인증을 취소하면 아무것도 바뀌지 않습니다.",
  },
  headers: {
    heading: "모든 응답의 헤더",
    about:
      "`X-Request-ID`는 요청을 가리키는 값이며 오류 객체에도 들어 있습니다. `X-Usage-Calls`와 `X-Usage-Limit`은 프로젝트가 이번 달(한국 시간)에 호출한 수와 호출할 수 있는 수로, 집계된 호출의 응답에 들어 있습니다. `RateLimit-Policy`와 `RateLimit`은 이번 1분 동안 남은 한도입니다. 429와 503에서는 `Retry-After`가 언제 다시 시도할지 알려 줍니다.",
  },
  webhooks: {
    heading: "웹훅",
    about:
      "인증은 한 번만 끝납니다. 그때 이벤트 하나를, 인증이 만들어질 때 프로젝트에 설정되어 있던 웹훅으로 POST합니다. 서명은 [Standard Webhooks](https://www.standardwebhooks.com) 규격을 따릅니다.",
    event:
      "`type`은 `verification.verified`, `verification.expired`, `verification.cancelled` 가운데 하나입니다. `data`는 그 순간에 조회했다면 받았을 응답입니다.",
    headers: {
      "webhook-id": "이벤트, `evt_…`. 몇 번을 다시 보내도 같습니다. 이벤트마다 한 번만 처리하십시오.",
      "webhook-timestamp": "이번 시도의 유닉스 시각(초). 5분 넘게 차이가 나면 거부하십시오.",
      "webhook-signature":
        "`v1,` 뒤에 HMAC-SHA256을 base64로 붙인 값. 비밀값을 바꾸는 동안에는 공백으로 구분된 여러 개가 옵니다. 하나만 맞으면 됩니다.",
    },
    signature:
      "서명 대상은 `{webhook-id}.{webhook-timestamp}.{body}`이고 본문은 받은 그대로입니다. 키는 비밀값의 `whsec_` 뒤를 base64로 디코딩한 값입니다. 검증에 실패하면 401로 응답하십시오. 15초 안에 2xx로 응답하고 처리는 그 뒤에 하십시오. 다른 응답에는 약 3일 동안 아홉 번까지 다시 보냅니다. 410으로 응답하면 웹훅이 비활성화됩니다.",
  },
  deprecated: {
    heading: "지원 중단 예정",
    about: "이것을 사용하는 호출의 응답에는 `Deprecation`과 `Sunset` 헤더가 있습니다.",
    entry: (what, since, sunset) =>
      `\`${what}\`: ${since}부터${sunset === null ? "" : `, ${sunset}에 없어집니다`}`,
    instead: "대신 사용할 것",
  },
  errors: {
    heading: "오류",
    all: "모든 오류",
    status: (status) => `상태 코드 ${status}.`,
    byCode: {
      malformed_request: {
        meaning:
          "요청을 HTTP로 읽을 수 없습니다. 올바른 요청 줄과 Host, 16 KiB 이하의 헤더를 보내고, 요청 전체를 10초 안에 보내십시오.",
        advice:
          "내용을 보기도 전에 거절된 요청입니다. 제대로 된 HTTP 클라이언트가 아니거나, 보내다가 멈췄거나, id나 헤더가 지나치게 깁니다.",
      },
      invalid_json: {
        meaning: "본문이 UTF-8로 된 JSON이 아닙니다. JSON 객체 하나를, 적어도 `{}`를 보내십시오.",
      },
      unsupported_content_type: {
        meaning:
          "본문에 미디어 타입이 없거나 JSON이 아닌 타입입니다. `Content-Type: application/json`을 보내십시오.",
        advice:
          "`charset=utf-8` 같은 매개변수는 붙여도 됩니다. 무엇이라고 적혀 있든 본문은 UTF-8로 읽습니다.",
      },
      body_too_large: { meaning: "본문이 64 KiB보다 큽니다. 이 요청의 필드만 보내십시오." },
      idempotency_key_required: {
        meaning:
          "Idempotency-Key가 없습니다. 인증을 시도할 때마다 새로 만든 값을, 예를 들어 임의의 UUID를 보내십시오.",
        advice:
          "사용자가 시작할 때 만들어, 보내기 전에 본문과 함께 저장하십시오. 그러면 응답을 받지 못한 요청을 나중에 다른 프로세스에서도 되풀이할 수 있습니다.",
      },
      idempotency_key_invalid: {
        meaning:
          "Idempotency-Key가 올바르지 않습니다. A-Z a-z 0-9 _ . : - 로 된 8~128자의 키를 하나만 보내십시오.",
      },
      missing_api_key: {
        meaning: "API 키가 없습니다. `Authorization: Bearer <API_KEY>`를 보내십시오.",
        advice: "호출은 가맹점 서버에서만 합니다. 페이지나 앱에 키를 넣으면 누구나 알아낼 수 있습니다.",
      },
      invalid_api_key: {
        meaning:
          "API 키나 토큰이 유효하지 않습니다. 없는 키이거나, 잘못 입력했거나, 폐기되었거나, 만료되었습니다. 사용 중인 키를 발급될 때 나온 그대로 전부 보내십시오.",
        advice:
          "헤더는 따옴표 없이 `Authorization: Bearer <API_KEY>`입니다. 키는 만들 때 한 번만 보여 주며 체크섬이 들어 있어, 잘리거나 잘못 입력한 키는 절대로 통하지 않습니다. `npx phoneproof key list`로 사용 중인 키를 확인하고 `npx phoneproof key create`로 새로 만듭니다.",
      },
      project_suspended: {
        meaning: "프로젝트가 정지되었습니다. 관리자가 정지를 풀 때까지 호출이 거절됩니다.",
      },
      insufficient_scope: {
        meaning:
          "이 키나 토큰으로는 할 수 없는 일입니다. 권한이 있는 것을 사용하십시오. 인증에는 그 프로젝트의 API 키를 사용합니다.",
        advice:
          "REST에서는 프로젝트의 API 키(`pp_live_…`, `pp_test_…`)만 받습니다. 내부 서비스의 토큰(`pp_svc_…`)은 gRPC용이며 정해진 범위에서만 쓸 수 있습니다.",
      },
      verification_not_found: {
        meaning:
          "이 프로젝트와 환경에 그런 인증이 없습니다. id가 맞는지, 키가 인증을 만든 환경의 것인지 확인하십시오.",
        advice:
          "테스트 키로는 라이브 인증을 볼 수 없고, 다른 프로젝트의 인증도 볼 수 없습니다. 그런 인증에는 없을 때와 똑같이 응답합니다.",
      },
      route_not_found: {
        meaning:
          "그런 경로가 없습니다. `POST /v1/verifications`나 `GET /v1/verifications/{id}`처럼 메서드와 경로가 맞는지 확인하십시오. 모든 경로는 `GET /docs`에 있습니다.",
      },
      idempotency_conflict: {
        meaning:
          "이 Idempotency-Key는 다른 본문과 함께 사용되었습니다. 그 본문을 다시 보내거나 새 키를 사용하십시오.",
        advice:
          "키 하나는 시도 하나에 속합니다. 보내기 전에 키와 본문을 함께 저장하고, 사용자가 다시 시도하면 키를 새로 만드십시오.",
      },
      verification_not_cancellable: {
        meaning:
          "대기 중인 인증만 취소할 수 있는데 이 인증은 이미 완료되었거나 만료되었습니다. 조회하여 결과를 확인하십시오.",
        advice:
          "취소가 오기 전에 끝났습니다. 사용자가 방금 문자를 보냈을 수 있으니, 인증을 조회하여 `status`에 따르십시오.",
      },
      validation_failed: {
        meaning: "요청에 잘못된 필드가 있습니다. 지적된 필드를 모두 고쳐 다시 보내십시오.",
        advice: "`fields`에 잘못된 필드가 하나씩 모두 들어 있고, 어떤 값이어야 하는지 적혀 있습니다.",
      },
      rate_limited: {
        meaning: "호출이 너무 잦습니다. `Retry-After`가 알려 주는 초만큼 기다리십시오.",
        advice:
          "기다렸다가 계속하면 됩니다. 한도는 프로젝트와 호출 종류마다 있으며, 관리자가 올릴 수 있습니다. `RateLimit-Policy`에 `authentication`이 있으면 같은 IP 주소에서 잘못된 키가 너무 많이 온 것이며, 올바른 키는 바로 받아들여집니다.",
      },
      usage_limit_exceeded: {
        meaning:
          "프로젝트가 이번 달(한국 시간)의 호출을 모두 사용했습니다. 다음 달까지 기다리거나 한도를 올려 달라고 요청하십시오.",
        advice: "프로젝트마다 있는 한도이며 매월 1일(한국 시간)부터 새로 셉니다. 관리자가 올릴 수 있습니다.",
      },
      no_receiving_number: {
        meaning:
          "인증을 더 받을 여유가 있는 수신 번호가 없습니다. 나중에 다시 시도하십시오. 계속 그러면 관리자가 이 환경에 번호를 추가해야 합니다.",
        advice:
          "새 프로젝트에는 사용하는 환경마다 번호가 필요합니다: `npx phoneproof number add NUMBER --environment live`. 번호가 있는데도 그렇다면 대기 중인 인증이 너무 많은 것입니다.",
      },
      service_unavailable: {
        meaning: "지금은 응답할 수 없습니다. 다시 시도하십시오. 생성은 같은 Idempotency-Key로 다시 보냅니다.",
        advice: retriedCreation,
      },
      internal_error: {
        meaning:
          "이 호출을 처리하지 못했습니다. 다시 시도하십시오. 생성은 같은 Idempotency-Key로 다시 보냅니다.",
        advice: `${retriedCreation} 계속 그러면 request_id를 알려 주십시오.`,
      },
    },
  },
  fields: {
    request: {
      mode: "discover: 사용자가 어느 휴대전화를 가지고 있는지 알아냅니다. match: 사용자가 expected_phone의 휴대전화를 가지고 있는지 확인합니다.",
      expected_phone: "비교할 010 휴대전화 번호. match 모드에서는 필수이고 discover에서는 무시합니다.",
      client_reference: "이 시도를 가리키는 가맹점의 식별자. 보낸 그대로 돌려줍니다.",
      state: "결과를 사용자의 세션과 잇는 임의의 값. 보낸 그대로 돌려줍니다.",
      parent_origin: "창이 결과를 알릴 오리진. 프로젝트에 등록된 것과 같아야 합니다.",
      return_url: "창이 돌아갈 주소. 프로젝트에 등록된 것과 같아야 합니다.",
    },
    verification: {
      id: "내용을 해석하지 말고 시도와 함께 저장하십시오.",
      status: "",
      environment: "",
      mode: "",
      phone: "인증된 전화번호, 01012345678. 인증되기 전과 파기된 뒤에는 null입니다.",
      carrier: "인증에 쓰인 문자의 발신 통신사. 알 수 없으면 null입니다.",
      client_reference: "",
      state: "",
      created_at: timestamp,
      expires_at: timestamp,
      verified_at: timestamp,
      server_time: timestamp,
      verification_url: "인증 창의 주소. 비밀값이 들어 있습니다.",
      destination: "문자를 보낼 번호.",
      sms_text: "보낼 문구 전체.",
    },
    error: {
      code: "프로그램은 이 값으로 분기합니다.",
      message: "사람이 읽는 영어 문장이며 바뀔 수 있습니다.",
      request_id: "X-Request-ID 헤더와 같습니다.",
      fields: "422일 때, 잘못된 것을 하나씩 모두.",
    },
  },
  tables: {
    field: "필드",
    value: "값",
    meaning: "뜻",
    header: "헤더",
    status: "상태",
    code: "코드",
    message: "뜻",
    or: "또는",
    atMost: (characters) => `최대 ${characters}자`,
    byDefault: (value) => `기본값 ${value}`,
  },
};
