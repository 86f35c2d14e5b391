-- How far people are with a failure on a route, as it is now: what they said, but regressed where it was resolved and
-- something of it died afterwards, and open again where it was ignored until a moment that has passed.
create view issue_state as
select
    failure_issues.route,
    failure_issues.group_id,
    case
        when failure_issues.status = 'ignored' and failure_issues.ignored_until_at <= {ago: 0 days} then 'open'
        when
            failure_issues.status = 'resolved'
            and exists (
                select 1
                from escalated_messages
                left join messages on messages.message_id = escalated_messages.message_id
                where
                    escalated_messages.route = failure_issues.route
                    and escalated_messages.group_id = failure_issues.group_id
                    and escalated_messages.escalated_at > failure_issues.status_at
                    and (
                        coalesce(messages.dead_lettered_at, messages.received_at, escalated_messages.escalated_at)
                        > failure_issues.status_at
                        -- or it was sent since and came back, whatever its newest copy tells of its death
                        or exists (
                            select 1
                            from redelivery_attempts as newest
                            where
                                newest.message_id = messages.message_id and newest.attempt = messages.attempts
                                and newest.outcome = 'returned' and newest.claimed_at > failure_issues.status_at
                        )
                    )
            )
            then 'regressed'
        else failure_issues.status
    end as status,
    failure_issues.owner,
    failure_issues.ticket,
    failure_issues.ignored_until_at,
    failure_issues.status_at,
    failure_issues.written_by,
    failure_issues.written_at
from failure_issues
