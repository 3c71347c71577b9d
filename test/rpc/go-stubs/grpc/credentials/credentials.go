package credentials

type TransportCredentials interface{ Clone() TransportCredentials }
