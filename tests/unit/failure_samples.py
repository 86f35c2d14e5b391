# ruff: noqa: E501 - texts stand here as systems write them
"""Failure texts as systems word them, one cause each: written for these tests from how libraries, databases, brokers
and clouds report errors, and used by the tests of rules, masks, grouping and the Spark job."""

from redrive.causes import Cause

C = Cause

SAMPLES: list[tuple[C, str]] = [
    # --- transient_network
    (
        C.TRANSIENT_NETWORK,
        "java.net.SocketTimeoutException: Read timed out\n\tat java.base/sun.nio.ch.NioSocketImpl.timedRead(NioSocketImpl.java:283)\n\tat com.acme.billing.InvoiceClient.fetch(InvoiceClient.java:88)",
    ),
    (
        C.TRANSIENT_NETWORK,
        'org.springframework.web.client.ResourceAccessException: I/O error on POST request for "https://pay.acme.test/v1/charge": Connection reset; nested exception is java.net.SocketException: Connection reset',
    ),
    (
        C.TRANSIENT_NETWORK,
        "requests.exceptions.ConnectionError: ('Connection aborted.', RemoteDisconnected('Remote end closed connection without response'))",
    ),
    (
        C.TRANSIENT_NETWORK,
        "urllib3.exceptions.NewConnectionError: <urllib3.connection.HTTPSConnection object at 0x7f2b1c3d4e50>: Failed to establish a new connection: [Errno 111] Connection refused",
    ),
    (C.TRANSIENT_NETWORK, "socket.gaierror: [Errno -3] Temporary failure in name resolution"),
    (C.TRANSIENT_NETWORK, "dial tcp 10.0.12.7:5672: connect: connection refused"),
    (
        C.TRANSIENT_NETWORK,
        'Post "https://hooks.acme.test/in": dial tcp: lookup hooks.acme.test on 10.96.0.10:53: no such host',
    ),
    (C.TRANSIENT_NETWORK, "read tcp 10.1.3.4:41234->10.1.9.9:443: read: connection reset by peer"),
    (C.TRANSIENT_NETWORK, "net/http: timeout awaiting response headers"),
    (
        C.TRANSIENT_NETWORK,
        "Error: connect ETIMEDOUT 52.31.7.9:443\n    at TCPConnectWrap.afterConnect [as oncomplete] (node:net:1495:16)",
    ),
    (C.TRANSIENT_NETWORK, "FetchError: request to https://api.acme.test/items failed, reason: socket hang up"),
    (C.TRANSIENT_NETWORK, "Error: getaddrinfo ENOTFOUND redis-master"),
    (
        C.TRANSIENT_NETWORK,
        "GuzzleHttp\\Exception\\ConnectException: cURL error 7: Failed to connect to search port 9200: Connection refused",
    ),
    (
        C.TRANSIENT_NETWORK,
        "System.Net.Http.HttpRequestException: No connection could be made because the target machine actively refused it. (localhost:5001)\n ---> System.Net.Sockets.SocketException (10061)",
    ),
    (
        C.TRANSIENT_NETWORK,
        "System.IO.IOException: Unable to read data from the transport connection: An existing connection was forcibly closed by the remote host.",
    ),
    (C.TRANSIENT_NETWORK, "Net::OpenTimeout: execution expired"),
    (C.TRANSIENT_NETWORK, 'Errno::EHOSTUNREACH: No route to host - connect(2) for "10.2.0.8" port 6379'),
    (
        C.TRANSIENT_NETWORK,
        "Faraday::ConnectionFailed: Failed to open TCP connection to api.acme.test:443 (getaddrinfo: Name or service not known)",
    ),
    (C.TRANSIENT_NETWORK, "rpc error: code = DeadlineExceeded desc = context deadline exceeded"),
    (C.TRANSIENT_NETWORK, "io.grpc.StatusRuntimeException: DEADLINE_EXCEEDED: deadline exceeded after 4.99s"),
    (C.TRANSIENT_NETWORK, "javax.net.ssl.SSLHandshakeException: Remote host terminated the handshake"),
    (
        C.TRANSIENT_NETWORK,
        "redis.exceptions.ConnectionError: Error 104 while writing to socket. Connection reset by peer.",
    ),
    (
        C.TRANSIENT_NETWORK,
        "org.apache.kafka.common.errors.TimeoutException: Expiring 3 record(s) for orders-0:120002 ms has passed since batch creation",
    ),
    (
        C.TRANSIENT_NETWORK,
        "com.rabbitmq.client.AlreadyClosedException: connection is already closed due to connection error; cause: java.io.EOFException",
    ),
    (C.TRANSIENT_NETWORK, "httpx.ReadTimeout: The read operation timed out"),
    (C.TRANSIENT_NETWORK, "aiohttp.client_exceptions.ServerDisconnectedError: Server disconnected"),
    (
        C.TRANSIENT_NETWORK,
        'botocore.exceptions.EndpointConnectionError: Could not connect to the endpoint URL: "https://sqs.eu-west-1.amazonaws.com/"',
    ),
    (C.TRANSIENT_NETWORK, "ERROR 2003 (HY000): Can't connect to MySQL server on 'db-1' (110)"),
    (C.TRANSIENT_NETWORK, "ORA-12541: TNS:no listener"),
    (C.TRANSIENT_NETWORK, "upstream: read: broken pipe"),
    # --- transient_database
    (
        C.TRANSIENT_DATABASE,
        "com.mysql.cj.jdbc.exceptions.MySQLTransactionRollbackException: Deadlock found when trying to get lock; try restarting transaction",
    ),
    (C.TRANSIENT_DATABASE, "psycopg2.errors.SerializationFailure: could not serialize access due to concurrent update"),
    (
        C.TRANSIENT_DATABASE,
        "sqlalchemy.exc.OperationalError: (psycopg2.errors.LockNotAvailable) canceling statement due to lock timeout",
    ),
    (C.TRANSIENT_DATABASE, "sqlite3.OperationalError: database is locked"),
    (
        C.TRANSIENT_DATABASE,
        "Microsoft.Data.SqlClient.SqlException (0x80131904): Transaction (Process ID 71) was deadlocked on lock resources with another process and has been chosen as the deadlock victim.",
    ),
    (C.TRANSIENT_DATABASE, "Error: ER_LOCK_WAIT_TIMEOUT: Lock wait timeout exceeded; try restarting transaction"),
    (
        C.TRANSIENT_DATABASE,
        "System.InvalidOperationException: Timeout expired.  The timeout period elapsed prior to obtaining a connection from the pool.  This may have occurred because all pooled connections were in use and max pool size was reached.",
    ),
    (
        C.TRANSIENT_DATABASE,
        "sqlalchemy.exc.TimeoutError: QueuePool limit of size 5 overflow 10 reached, connection timed out, timeout 30.00",
    ),
    (
        C.TRANSIENT_DATABASE,
        "ActiveRecord::ConnectionTimeoutError: could not obtain a connection from the pool within 5.000 seconds (waited 5.001 seconds); all pooled connections were in use",
    ),
    (C.TRANSIENT_DATABASE, "pq: canceling statement due to conflict with recovery"),
    (C.TRANSIENT_DATABASE, "ERROR: deadlock detected (SQLSTATE 40P01)"),
    (
        C.TRANSIENT_DATABASE,
        "ERROR 1290 (HY000): The MySQL server is running with the --read-only option so it cannot execute this statement",
    ),
    (C.TRANSIENT_DATABASE, "redis.exceptions.ReadOnlyError: You can't write against a read only replica."),
    (C.TRANSIENT_DATABASE, "READONLY You can't write against a read only replica. script: 8a1f"),
    (C.TRANSIENT_DATABASE, "pymongo.errors.NotPrimaryError: node is recovering"),
    (C.TRANSIENT_DATABASE, "SQLSTATE[HY000]: General error: 2006 MySQL server has gone away"),
    (C.TRANSIENT_DATABASE, "Lost connection to MySQL server during query"),
    (
        C.TRANSIENT_DATABASE,
        "psycopg2.OperationalError: server closed the connection unexpectedly\n\tThis probably means the server terminated abnormally",
    ),
    (
        C.TRANSIENT_DATABASE,
        "TransactionCanceledException: Transaction cancelled, please refer cancellation reasons for specific reasons [TransactionConflict]",
    ),
    (C.TRANSIENT_DATABASE, "ORA-03113: end-of-file on communication channel"),
    (
        C.TRANSIENT_DATABASE,
        "Execution Timeout Expired.  The timeout period elapsed prior to completion of the operation or the server is not responding.",
    ),
    (C.TRANSIENT_DATABASE, "Msg 1222, Level 16, State 45, Line 3\nLock request time out period exceeded."),
    (C.TRANSIENT_DATABASE, "ERROR: canceling statement due to statement timeout"),
    (
        C.TRANSIENT_DATABASE,
        "com.zaxxer.hikari.pool.HikariPool$PoolInitializationException: HikariPool-1 - Connection is not available, request timed out after 30001ms (total=10, active=10, idle=0, waiting=12)",
    ),
    # --- dependency_unavailable
    (
        C.DEPENDENCY_UNAVAILABLE,
        "org.springframework.web.client.HttpServerErrorException$ServiceUnavailable: 503 Service Unavailable: [no body]",
    ),
    (
        C.DEPENDENCY_UNAVAILABLE,
        "feign.FeignException$BadGateway: [502 Bad Gateway] during [POST] to [http://stock/api/reserve]",
    ),
    (C.DEPENDENCY_UNAVAILABLE, "AxiosError: Request failed with status code 504"),
    (
        C.DEPENDENCY_UNAVAILABLE,
        "requests.exceptions.HTTPError: 500 Server Error: Internal Server Error for url: http://pricing:8080/quote",
    ),
    (
        C.DEPENDENCY_UNAVAILABLE,
        "Server error: `POST https://api.acme.test/orders` resulted in a `502 Bad Gateway` response",
    ),
    (C.DEPENDENCY_UNAVAILABLE, "pybreaker.CircuitBreakerError: Timeout not elapsed yet, circuit breaker still open"),
    (
        C.DEPENDENCY_UNAVAILABLE,
        "io.github.resilience4j.circuitbreaker.CallNotPermittedException: CircuitBreaker 'stock' is OPEN and does not permit further calls",
    ),
    (C.DEPENDENCY_UNAVAILABLE, "upstream connect error or disconnect/reset before headers. reset reason: overflow"),
    (C.DEPENDENCY_UNAVAILABLE, "FATAL: the database system is starting up"),
    (C.DEPENDENCY_UNAVAILABLE, "LOADING Redis is loading the dataset in memory"),
    (C.DEPENDENCY_UNAVAILABLE, "kafka.errors.NoBrokersAvailable: NoBrokersAvailable"),
    (
        C.DEPENDENCY_UNAVAILABLE,
        "org.apache.kafka.common.errors.NotEnoughReplicasException: Messages are rejected since there are fewer in-sync replicas than required.",
    ),
    (
        C.DEPENDENCY_UNAVAILABLE,
        "An error occurred (ServiceUnavailable) when calling the PutObject operation (reached max retries: 4): Please reduce load",
    ),
    (
        C.DEPENDENCY_UNAVAILABLE,
        "An error occurred (InternalError) when calling the GetObject operation: We encountered an internal error. Please try again.",
    ),
    (
        C.DEPENDENCY_UNAVAILABLE,
        'pymongo.errors.ServerSelectionTimeoutError: No replica set members match selector "Primary()"',
    ),
    (
        C.DEPENDENCY_UNAVAILABLE,
        'Grpc.Core.RpcException: Status(StatusCode="Unavailable", Detail="failed to connect to all addresses")',
    ),
    (
        C.DEPENDENCY_UNAVAILABLE,
        "elasticsearch.exceptions.TransportError: TransportError(503, 'master_not_discovered_exception')",
    ),
    (C.DEPENDENCY_UNAVAILABLE, "The service is down for scheduled maintenance, please come back after 06:00 UTC"),
    (C.DEPENDENCY_UNAVAILABLE, "HTTP/1.1 503 Service Temporarily Unavailable"),
    (C.DEPENDENCY_UNAVAILABLE, "unexpected response code: 502"),
    (C.DEPENDENCY_UNAVAILABLE, "googleapi: Error 503: Backend Error, backendError"),
    # --- throttled
    (
        C.THROTTLED,
        "An error occurred (ProvisionedThroughputExceededException) when calling the PutItem operation: The level of configured provisioned throughput for the table was exceeded.",
    ),
    (
        C.THROTTLED,
        "software.amazon.awssdk.services.sns.model.ThrottledException: Rate exceeded (Service: Sns, Status Code: 400, Request ID: 1f2e)",
    ),
    (
        C.THROTTLED,
        "slack_sdk.errors.SlackApiError: The request to the Slack API failed. The server responded with: {'ok': False, 'error': 'ratelimited'}",
    ),
    (C.THROTTLED, "Error: Request failed with status code 429"),
    (
        C.THROTTLED,
        "GuzzleHttp\\Exception\\ClientException: Client error: `POST https://api.mail.test/send` resulted in a `429 Too Many Requests` response",
    ),
    (C.THROTTLED, "googleapi: Error 403: Rate Limit Exceeded, rateLimitExceeded"),
    (C.THROTTLED, "API rate limit exceeded for installation ID 8812"),
    (C.THROTTLED, "com.microsoft.azure.documentdb.DocumentClientException: Request rate is large. ActivityId: 77aa"),
    (
        C.THROTTLED,
        "The request was terminated because the entity is being throttled. Error code: 50009. Please wait 4 seconds and try again.",
    ),
    (C.THROTTLED, "SlowDown: Please reduce your request rate."),
    (C.THROTTLED, "rpc error: code = ResourceExhausted desc = Quota exceeded for quota metric 'Publish requests'"),
    (C.THROTTLED, "454 4.7.0 Throttling failure: Maximum sending rate exceeded."),
    (C.THROTTLED, "Twilio::REST::RestError: [HTTP 429] 20429 : Too Many Requests"),
    (C.THROTTLED, "Stripe::RateLimitError: Request rate limit exceeded."),
    (C.THROTTLED, "openai.RateLimitError: Rate limit reached for requests per min. Limit: 60 / min."),
    (
        C.THROTTLED,
        "TooManyRequestsException: Rate Exceeded. Lambda was throttled by ReservedFunctionConcurrentInvocationLimitExceeded",
    ),
    (C.THROTTLED, "REQUEST_LIMIT_EXCEEDED: TotalRequests Limit exceeded."),
    # --- consistency_lag
    (
        C.CONSISTENCY_LAG,
        "org.hibernate.StaleObjectStateException: Row was updated or deleted by another transaction (or unsaved-value mapping was incorrect) : [com.acme.Order#12]",
    ),
    (C.CONSISTENCY_LAG, "jakarta.persistence.OptimisticLockException: Batch update returned unexpected row count"),
    (
        C.CONSISTENCY_LAG,
        "elasticsearch.ConflictError: ConflictError(409, 'version_conflict_engine_exception', '[7]: version conflict, current version [3] is different than the one provided [2]')",
    ),
    (
        C.CONSISTENCY_LAG,
        "WrongExpectedVersionException: Append failed due to WrongExpectedVersion. Stream: order-17, Expected version: 4, Actual version: 5",
    ),
    (C.CONSISTENCY_LAG, "409 Conflict: document update conflict"),
    (
        C.CONSISTENCY_LAG,
        "Azure.RequestFailedException: The update condition specified in the request was not satisfied. ErrorCode: UpdateConditionNotSatisfied Status: 412 (Precondition Failed)",
    ),
    (C.CONSISTENCY_LAG, "Order 4711 not visible yet on the read replica: replica lag 12 s"),
    (
        C.CONSISTENCY_LAG,
        "An error occurred (ResourceInUseException) when calling the UpdateTable operation: Table is being updated",
    ),
    (
        C.CONSISTENCY_LAG,
        "org.apache.kafka.common.errors.NotLeaderOrFollowerException: For requests intended only for the leader, this error indicates that the broker is not the current leader.",
    ),
    (
        C.CONSISTENCY_LAG,
        "Microsoft.EntityFrameworkCore.DbUpdateConcurrencyException: The database operation was expected to affect 1 row(s), but actually affected 0 row(s); data may have been modified or deleted since entities were loaded.",
    ),
    (
        C.CONSISTENCY_LAG,
        'Operation cannot be fulfilled on deployments.apps "web": the object has been modified; please apply your changes to the latest version and try again',
    ),
    (C.CONSISTENCY_LAG, "Mongoid::Errors::StaleObject stale object: version 3 is not current"),
    # --- resource_exhausted
    (C.RESOURCE_EXHAUSTED, "OSError: [Errno 28] No space left on device: '/var/spool/app/17.tmp'"),
    (C.RESOURCE_EXHAUSTED, "java.lang.OutOfMemoryError: Java heap space"),
    (C.RESOURCE_EXHAUSTED, "open /data/x: too many open files"),
    (C.RESOURCE_EXHAUSTED, "FATAL:  sorry, too many clients already"),
    (C.RESOURCE_EXHAUSTED, "SQLSTATE[HY000] [1040] Too many connections"),
    (
        C.RESOURCE_EXHAUSTED,
        "PHP Fatal error:  Allowed memory size of 134217728 bytes exhausted (tried to allocate 20480 bytes) in /srv/app/Job.php on line 40",
    ),
    (C.RESOURCE_EXHAUSTED, "FATAL ERROR: CALL_AND_RETRY_LAST Allocation failed - JavaScript heap out of memory"),
    (C.RESOURCE_EXHAUSTED, "RuntimeError: can't start new thread"),
    (C.RESOURCE_EXHAUSTED, "System.OutOfMemoryException: Exception of type 'System.OutOfMemoryException' was thrown."),
    (C.RESOURCE_EXHAUSTED, "ORA-01653: unable to extend table APP.EVENTS by 128 in tablespace USERS"),
    (
        C.RESOURCE_EXHAUSTED,
        "elasticsearch: [circuit_breaking_exception] [parent] Data too large, data for [<http_request>] would be [1.9gb]",
    ),
    (C.RESOURCE_EXHAUSTED, "torch.cuda.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB"),
    (C.RESOURCE_EXHAUSTED, "fork: Resource temporarily unavailable"),
    (
        C.RESOURCE_EXHAUSTED,
        'ERROR:  could not resize shared memory segment "/PostgreSQL.1804" to 8388608 bytes: No space left on device',
    ),
    (C.RESOURCE_EXHAUSTED, "write error: Disk quota exceeded"),
    (C.RESOURCE_EXHAUSTED, "NoMemoryError: failed to allocate memory"),
    # --- consumer_stuck
    (C.CONSUMER_STUCK, "celery.exceptions.SoftTimeLimitExceeded: SoftTimeLimitExceeded()"),
    (C.CONSUMER_STUCK, "billiard.exceptions.WorkerLostError: Worker exited prematurely: signal 9 (SIGKILL) Job: 4."),
    (
        C.CONSUMER_STUCK,
        "2025-05-01T10:00:00.000Z 1f2e3d4c-aaaa-bbbb-cccc-0123456789ab Task timed out after 30.03 seconds",
    ),
    (C.CONSUMER_STUCK, "Error: Runtime exited with error: signal: killed Runtime.ExitError"),
    (C.CONSUMER_STUCK, "App\\Jobs\\SyncInventory has timed out."),
    (C.CONSUMER_STUCK, "job stalled more than maxStalledCount"),
    (C.CONSUMER_STUCK, "Back-off restarting failed container worker in pod worker-6c9f, reason: CrashLoopBackOff"),
    (C.CONSUMER_STUCK, "Sidekiq::Shutdown: worker terminated while job was running"),
    (C.CONSUMER_STUCK, "activity Heartbeat timeout: no heartbeat recorded within 30s"),
    (C.CONSUMER_STUCK, "Member consumer-1 in group billing has failed, removing it from the group: heartbeat expired"),
    (
        C.CONSUMER_STUCK,
        "consumer poll timeout has expired. This means the time between subsequent calls to poll() was longer than the configured max.poll.interval.ms",
    ),
    (C.CONSUMER_STUCK, "Work-horse process was terminated unexpectedly (waitpid returned 9)"),
    (C.CONSUMER_STUCK, "Pod was evicted: The node had condition: [MemoryPressure]."),
    (C.CONSUMER_STUCK, "[CRITICAL] WORKER TIMEOUT (pid:77)"),
    (
        C.CONSUMER_STUCK,
        "Timeout value of 00:05:00 exceeded by function 'Functions.Import' (Id: '3f'). Microsoft.Azure.WebJobs.Host.FunctionTimeoutException",
    ),
    # --- lease_expired
    (C.LEASE_EXPIRED, "azure.servicebus.exceptions.MessageLockLostError: The lock on the message lock has expired."),
    (
        C.LEASE_EXPIRED,
        "The lock supplied is invalid. Either the lock expired, or the message has already been removed from the queue, or was received by a different receiver instance.",
    ),
    (C.LEASE_EXPIRED, "ReceiptHandleIsInvalid: The input receipt handle is invalid."),
    (
        C.LEASE_EXPIRED,
        "An error occurred (InvalidParameterValue) when calling the ChangeMessageVisibility operation: Value AQEB for parameter ReceiptHandle is invalid. Reason: Message does not exist or is not available for visibility timeout change.",
    ),
    (
        C.LEASE_EXPIRED,
        "PRECONDITION_FAILED - delivery acknowledgement on channel 3 timed out. Timeout value used: 1800000 ms.",
    ),
    (
        C.LEASE_EXPIRED,
        "google.api_core.exceptions.FailedPrecondition: 400 Some acknowledgement ids were invalid: PERMANENT_FAILURE_INVALID_ACK_ID",
    ),
    (
        C.LEASE_EXPIRED,
        "org.apache.kafka.clients.consumer.CommitFailedException: Commit cannot be completed since the group has already rebalanced and assigned the partitions to another member.",
    ),
    (C.LEASE_EXPIRED, "Error: could not renew lock for job 771"),
    (
        C.LEASE_EXPIRED,
        "LeaseIdMismatchWithLeaseOperation: The lease ID specified did not match the lease ID for the blob.",
    ),
    (C.LEASE_EXPIRED, "redis.exceptions.LockNotOwnedError: Cannot release a lock that's no longer owned"),
    (C.LEASE_EXPIRED, "SessionLockLostException: The session lock was lost. Request a new session receiver."),
    # --- duplicate
    (
        C.DUPLICATE,
        'django.db.utils.IntegrityError: duplicate key value violates unique constraint "orders_pkey"\nDETAIL:  Key (id)=(991) already exists.',
    ),
    (
        C.DUPLICATE,
        "Microsoft.Data.SqlClient.SqlException: Violation of UNIQUE KEY constraint 'UQ_Orders'. Cannot insert duplicate key in object 'dbo.Orders'. The duplicate key value is (77).",
    ),
    (C.DUPLICATE, "ORA-00001: unique constraint (APP.ORDERS_PK) violated"),
    (C.DUPLICATE, "E11000 duplicate key error collection: shop.orders index: _id_ dup key: { _id: 12 }"),
    (C.DUPLICATE, "sqlite3.IntegrityError: UNIQUE constraint failed: events.id"),
    (C.DUPLICATE, "SequelizeUniqueConstraintError: Validation error"),
    (C.DUPLICATE, "ActiveRecord::RecordInvalid: Validation failed: Email has already been taken"),
    (C.DUPLICATE, "Payment 88 was already captured"),
    (C.DUPLICATE, "rpc error: code = AlreadyExists desc = instance already exists"),
    (
        C.DUPLICATE,
        "Illuminate\\Database\\UniqueConstraintViolationException: SQLSTATE[23000]: Integrity constraint violation: 1062 Duplicate entry '7-12' for key 'ledger.uq'",
    ),
    (C.DUPLICATE, "event evt_19 has already been processed, ignoring"),
    (
        C.DUPLICATE,
        "com.stripe.exception.IdempotencyException: Keys for idempotent requests can only be used with the same parameters",
    ),
    # --- max_deliveries
    (C.MAX_DELIVERIES, "Message could not be consumed after 10 delivery attempts."),
    (
        C.MAX_DELIVERIES,
        "Illuminate\\Queue\\MaxAttemptsExceededException: App\\Jobs\\Import has been attempted too many times.",
    ),
    (C.MAX_DELIVERIES, "Retries exhausted: 3/3"),
    (C.MAX_DELIVERIES, "giving up after 5 attempts"),
    (C.MAX_DELIVERIES, "Message dead-lettered after exceeding max delivery count of 5"),
    (C.MAX_DELIVERIES, "MaxRetriesExceededError: Can't retry app.sync[0f] args:() kwargs:{}"),
    # --- message_expired
    (C.MESSAGE_EXPIRED, "TTLExpiredException: The message expired and was dead lettered."),
    (C.MESSAGE_EXPIRED, "Message expired before it could be consumed (time to live 60000 ms)"),
    (C.MESSAGE_EXPIRED, "x-first-death-reason: expired"),
    (C.MESSAGE_EXPIRED, "Event discarded: event age exceeded the maximum of 3600 seconds"),
    (C.MESSAGE_EXPIRED, "celery.exceptions.TaskRevokedError: expired"),
    # --- malformed_payload
    (
        C.MALFORMED_PAYLOAD,
        "json.decoder.JSONDecodeError: Expecting property name enclosed in double quotes: line 1 column 2 (char 1)",
    ),
    (
        C.MALFORMED_PAYLOAD,
        "SyntaxError: Unexpected token < in JSON at position 0\n    at JSON.parse (<anonymous>)\n    at handle (/srv/app/worker.js:14:22)",
    ),
    (
        C.MALFORMED_PAYLOAD,
        'com.fasterxml.jackson.databind.exc.MismatchedInputException: Cannot deserialize value of type `int` from String "x"',
    ),
    (C.MALFORMED_PAYLOAD, "invalid character 'h' looking for beginning of value"),
    (C.MALFORMED_PAYLOAD, "json: cannot unmarshal string into Go struct field Order.amount of type float64"),
    (
        C.MALFORMED_PAYLOAD,
        "pydantic_core._pydantic_core.ValidationError: 1 validation error for Order\namount\n  Field required [type=missing]",
    ),
    (C.MALFORMED_PAYLOAD, "google.protobuf.message.DecodeError: Error parsing message"),
    (
        C.MALFORMED_PAYLOAD,
        "System.Text.Json.JsonException: The JSON value could not be converted to System.Int32. Path: $.qty",
    ),
    (
        C.MALFORMED_PAYLOAD,
        "Newtonsoft.Json.JsonReaderException: Unexpected character encountered while parsing value: <. Path '', line 0, position 0.",
    ),
    (C.MALFORMED_PAYLOAD, "jsonschema.exceptions.ValidationError: 'sku' is a required property"),
    (C.MALFORMED_PAYLOAD, "org.apache.avro.AvroTypeException: Found long, expecting union"),
    (C.MALFORMED_PAYLOAD, "xml.etree.ElementTree.ParseError: not well-formed (invalid token): line 1, column 4"),
    (
        C.MALFORMED_PAYLOAD,
        'psycopg2.errors.NotNullViolation: null value in column "customer_id" violates not-null constraint',
    ),
    (C.MALFORMED_PAYLOAD, 'ERROR: invalid byte sequence for encoding "UTF8": 0x00'),
    (C.MALFORMED_PAYLOAD, "JsonException: Syntax error, malformed JSON"),
    (
        C.MALFORMED_PAYLOAD,
        'ZodError: [ { "code": "invalid_type", "expected": "string", "received": "undefined", "path": ["email"], "message": "Required" } ]',
    ),
    (
        C.MALFORMED_PAYLOAD,
        "kombu.exceptions.ContentDisallowed: Refusing to deserialize untrusted content of type pickle (application/x-python-serialize)",
    ),
    (C.MALFORMED_PAYLOAD, "binascii.Error: Incorrect padding while decoding base64"),
    (C.MALFORMED_PAYLOAD, "gzip: invalid header"),
    (C.MALFORMED_PAYLOAD, '422 Unprocessable Entity: {"errors":{"email":["is invalid"]}}'),
    (C.MALFORMED_PAYLOAD, "400 Bad Request: amount must be a positive number"),
    (
        C.MALFORMED_PAYLOAD,
        "org.springframework.messaging.converter.MessageConversionException: Could not read JSON: Unrecognized token 'oops'",
    ),
    # --- missing_data
    (C.MISSING_DATA, "app.models.Customer.DoesNotExist: Customer matching query does not exist."),
    (C.MISSING_DATA, "jakarta.persistence.EntityNotFoundException: Unable to find com.acme.Order with id 7"),
    (C.MISSING_DATA, "No query results for model [App\\Models\\Order] 991"),
    (C.MISSING_DATA, "sql: no rows in result set"),
    (
        C.MISSING_DATA,
        "An error occurred (NoSuchKey) when calling the GetObject operation: The specified key does not exist.",
    ),
    (C.MISSING_DATA, "FileNotFoundError: [Errno 2] No such file or directory: '/data/in/7.csv'"),
    (C.MISSING_DATA, "requests.exceptions.HTTPError: 404 Client Error: Not Found for url: http://crm/customers/77"),
    (
        C.MISSING_DATA,
        'ERROR: insert or update on table "lines" violates foreign key constraint "fk_order" (SQLSTATE 23503)',
    ),
    (C.MISSING_DATA, "ORA-02291: integrity constraint (APP.FK1) violated - parent key not found"),
    (C.MISSING_DATA, "Stripe::InvalidRequestError: No such customer: 'cus_19'"),
    (C.MISSING_DATA, "rpc error: code = NotFound desc = order 18 not found"),
    (C.MISSING_DATA, "ValueError: unknown customer 4711"),
    (
        C.MISSING_DATA,
        "Azure.RequestFailedException: The specified blob does not exist. Status: 404 (The specified blob does not exist.) ErrorCode: BlobNotFound",
    ),
    (C.MISSING_DATA, "NotFoundError: Product sku-77 not found"),
    (
        C.MISSING_DATA,
        "PrismaClientKnownRequestError: An operation failed because it depends on one or more records that were required but not found. Record to update not found.",
    ),
    # --- auth_failure
    (
        C.AUTH_FAILURE,
        "botocore.exceptions.ClientError: An error occurred (AccessDenied) when calling the PutObject operation: Access Denied",
    ),
    (
        C.AUTH_FAILURE,
        "User: arn:aws:sts::111122223333:assumed-role/worker/i-0a is not authorized to perform: kms:Decrypt on resource",
    ),
    (C.AUTH_FAILURE, "botocore.exceptions.NoCredentialsError: Unable to locate credentials"),
    (C.AUTH_FAILURE, 'FATAL: password authentication failed for user "worker"'),
    (C.AUTH_FAILURE, "Access denied for user 'app'@'10.0.0.4' (using password: YES)"),
    (C.AUTH_FAILURE, "Login failed for user 'svc'. Msg 18456, Level 14, State 1"),
    (
        C.AUTH_FAILURE,
        "requests.exceptions.SSLError: [SSL: CERTIFICATE_VERIFY_FAILED] certificate verify failed: certificate has expired",
    ),
    (C.AUTH_FAILURE, "x509: certificate signed by unknown authority"),
    (
        C.AUTH_FAILURE,
        "sun.security.validator.ValidatorException: PKIX path building failed: unable to find valid certification path to requested target",
    ),
    (C.AUTH_FAILURE, "jwt.exceptions.ExpiredSignatureError: Signature has expired"),
    (C.AUTH_FAILURE, "403 Forbidden: token lacks scope orders:write"),
    (C.AUTH_FAILURE, "AxiosError: Request failed with status code 401"),
    (C.AUTH_FAILURE, "NOAUTH Authentication required."),
    (C.AUTH_FAILURE, "rpc error: code = Unauthenticated desc = invalid token"),
    (
        C.AUTH_FAILURE,
        "org.apache.kafka.common.errors.SaslAuthenticationException: Authentication failed: Invalid username or password",
    ),
    (C.AUTH_FAILURE, "Error: invalid_grant"),
    (C.AUTH_FAILURE, "ERROR: permission denied for table orders"),
    (C.AUTH_FAILURE, "535 5.7.8 Error: authentication failed: UGFzc3dvcmQ6"),
    (C.AUTH_FAILURE, "PermissionError: [Errno 13] Permission denied: '/srv/out'"),
    (
        C.AUTH_FAILURE,
        "com.amazonaws.services.s3.model.AmazonS3Exception: The request signature we calculated does not match the signature you provided. (Status Code: 403; Error Code: SignatureDoesNotMatch)",
    ),
    (C.AUTH_FAILURE, "ACCESS_REFUSED - access to queue 'orders' in vhost '/' refused for user 'guest'"),
    # --- oversized
    (
        C.OVERSIZED,
        "org.apache.kafka.common.errors.RecordTooLargeException: The message is 2097231 bytes when serialized which is larger than 1048576, which is the value of the max.request.size configuration.",
    ),
    (
        C.OVERSIZED,
        "An error occurred (InvalidParameterValue) when calling the SendMessage operation: One or more parameters are invalid. Reason: Message must be shorter than 262144 bytes.",
    ),
    (C.OVERSIZED, "grpc: received message larger than max (5242980 vs. 4194304)"),
    (C.OVERSIZED, "413 Payload Too Large"),
    (C.OVERSIZED, "PayloadTooLargeError: request entity too large"),
    (C.OVERSIZED, "BSONObjectTooLarge: object to insert too large. size in bytes: 18000000, max size: 16777216"),
    (
        C.OVERSIZED,
        "com.azure.messaging.servicebus.ServiceBusException: The message size (287654 bytes) exceeds the limit (262144 bytes)",
    ),
    (C.OVERSIZED, "ItemSizeLimit: Item size has exceeded the maximum allowed size"),
    (
        C.OVERSIZED,
        "Packet for query is too large (7,654,321 > 4,194,304). You can change this value on the server by setting the 'max_allowed_packet' variable.",
    ),
    (C.OVERSIZED, "431 Request Header Fields Too Large"),
    (C.OVERSIZED, "nats: maximum payload exceeded"),
    (C.OVERSIZED, "552 5.3.4 Message too big for system"),
    # --- routing_failure
    (C.ROUTING_FAILURE, "NOT_FOUND - no exchange 'billing' in vhost '/'"),
    (C.ROUTING_FAILURE, "NOT_FOUND - no queue 'billing.q' in vhost 'prod'"),
    (
        C.ROUTING_FAILURE,
        "AWS.SimpleQueueService.NonExistentQueue: The specified queue does not exist for this wsdl version.",
    ),
    (C.ROUTING_FAILURE, "UnknownTopicOrPartitionException: This server does not host this topic-partition."),
    (C.ROUTING_FAILURE, "celery.exceptions.NotRegistered: 'app.tasks.old'"),
    (C.ROUTING_FAILURE, "MessagingEntityNotFound: The messaging entity 'sb://x/orders' could not be found."),
    (C.ROUTING_FAILURE, "MessagingEntityDisabled: Entity 'orders' is currently disabled for receive."),
    (C.ROUTING_FAILURE, "NServiceBus: No handlers could be found for message type: Acme.OrderPlaced"),
    (
        C.ROUTING_FAILURE,
        'Symfony\\Component\\Messenger\\Exception\\NoHandlerForMessageException: No handler for message "App\\Message\\Ping".',
    ),
    (C.ROUTING_FAILURE, "rpc error: code = Unimplemented desc = unknown method Charge for service pay.Pay"),
    (
        C.ROUTING_FAILURE,
        "org.springframework.messaging.MessageDeliveryException: Dispatcher has no subscribers for channel 'app.input'",
    ),
    (C.ROUTING_FAILURE, "basic.return: 312 NO_ROUTE for exchange 'events' routing key 'order.void'"),
    (C.ROUTING_FAILURE, "Session ID is null. The entity requires sessions."),
    (C.ROUTING_FAILURE, "404 Topic not found: projects/acme/topics/orders"),
    (C.ROUTING_FAILURE, "nats: no responders available for request"),
    (C.ROUTING_FAILURE, "554 5.4.6 Too many hops"),
    # --- application_bug
    (
        C.APPLICATION_BUG,
        'java.lang.NullPointerException: Cannot invoke "com.acme.Order.getId()" because "order" is null\n\tat com.acme.Worker.handle(Worker.java:41)',
    ),
    (
        C.APPLICATION_BUG,
        'Traceback (most recent call last):\n  File "/srv/app/worker.py", line 31, in handle\n    total = order["total"]\nKeyError: \'total\'',
    ),
    (
        C.APPLICATION_BUG,
        "TypeError: Cannot read properties of undefined (reading 'id')\n    at handler (/srv/app/dist/worker.js:88:19)",
    ),
    (
        C.APPLICATION_BUG,
        "System.NullReferenceException: Object reference not set to an instance of an object.\n   at Acme.Orders.Handler.Handle(Order o) in C:\\src\\Handler.cs:line 40",
    ),
    (C.APPLICATION_BUG, "panic: runtime error: invalid memory address or nil pointer dereference"),
    (C.APPLICATION_BUG, "panic: runtime error: index out of range [3] with length 3"),
    (C.APPLICATION_BUG, "NoMethodError: undefined method `total' for nil:NilClass"),
    (C.APPLICATION_BUG, 'ErrorException: Undefined array key "sku" in /srv/app/Jobs/Sync.php:19'),
    (C.APPLICATION_BUG, "AssertionError: amount must not be negative"),
    (C.APPLICATION_BUG, "ZeroDivisionError: division by zero"),
    (
        C.APPLICATION_BUG,
        "java.lang.ClassCastException: class java.lang.Integer cannot be cast to class java.lang.String",
    ),
    (C.APPLICATION_BUG, "ModuleNotFoundError: No module named 'pricing'"),
    (C.APPLICATION_BUG, "RangeError: Maximum call stack size exceeded"),
    (C.APPLICATION_BUG, "System.InvalidOperationException: Sequence contains more than one element"),
    (C.APPLICATION_BUG, "AttributeError: 'NoneType' object has no attribute 'split'"),
    (C.APPLICATION_BUG, "TypeError: charge() missing 1 required positional argument: 'currency'"),
    (C.APPLICATION_BUG, 'psycopg2.errors.UndefinedColumn: column "vat" does not exist'),
    (C.APPLICATION_BUG, "thread 'worker-2' panicked at src/main.rs:41:9: called `Option::unwrap()` on a `None` value"),
    (C.APPLICATION_BUG, "java.lang.IllegalStateException: order 7 is in state SHIPPED"),
    (C.APPLICATION_BUG, "IndexError: list index out of range"),
    # --- chains: the root decides
    (
        C.TRANSIENT_DATABASE,
        "org.springframework.amqp.rabbit.support.ListenerExecutionFailedException: Listener threw exception\n\tat org.springframework.amqp.rabbit.listener.adapter.MessagingMessageListenerAdapter.invoke(MessagingMessageListenerAdapter.java:152)\nCaused by: org.springframework.dao.DataAccessResourceFailureException: could not execute statement\nCaused by: org.postgresql.util.PSQLException: ERROR: deadlock detected",
    ),
    (
        C.TRANSIENT_NETWORK,
        "java.lang.IllegalStateException: cannot process order\n\tat com.acme.Worker.run(Worker.java:12)\nCaused by: java.lang.RuntimeException: java.net.ConnectException\nCaused by: java.net.ConnectException: Connection refused",
    ),
    (
        C.APPLICATION_BUG,
        "org.springframework.kafka.listener.ListenerExecutionFailedException: Listener failed; nested exception is java.lang.NullPointerException",
    ),
    (C.THROTTLED, "celery.exceptions.Retry: Retry in 60s: HTTPError('429 Client Error: Too Many Requests')"),
    (
        C.DEPENDENCY_UNAVAILABLE,
        "Acme.OrderException: could not reserve\n ---> System.Net.Http.HttpRequestException: Response status code does not indicate success: 503 (Service Unavailable).\n   at System.Net.Http.HttpResponseMessage.EnsureSuccessStatusCode()\n   --- End of inner exception stack trace ---\n   at Acme.Orders.Reserve() in /src/Orders.cs:line 9",
    ),
    (C.DUPLICATE, 'process order: save: pq: duplicate key value violates unique constraint "orders_pkey"'),
    (
        C.AUTH_FAILURE,
        "sync failed: list objects: operation error S3: ListObjectsV2, https response error StatusCode: 403, api error AccessDenied: Access Denied",
    ),
    (
        C.MALFORMED_PAYLOAD,
        'Traceback (most recent call last):\n  File "/srv/app/codec.py", line 9, in load\n    return json.loads(body)\njson.decoder.JSONDecodeError: Expecting value: line 1 column 1 (char 0)\n\nThe above exception was the direct cause of the following exception:\n\nTraceback (most recent call last):\n  File "/srv/app/worker.py", line 20, in handle\n    raise RuntimeError("cannot handle") from error\nRuntimeError: cannot handle',
    ),
    (
        C.TRANSIENT_NETWORK,
        "MaxRetryError: HTTPSConnectionPool(host='api.acme.test', port=443): Max retries exceeded with url: /v1 (Caused by NewConnectionError('Failed to establish a new connection: [Errno 111] Connection refused'))",
    ),
    (C.TRANSIENT_NETWORK, "giving up after 3 attempts: connection reset by peer"),
]
