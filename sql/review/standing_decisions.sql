-- Which decisions stand, until when, and how many messages did each decide so far? Those that are over come last. One
-- with a suspended_at decides nothing more on a route where its group failed: after the fix, make another one.
select
    standing_decisions.standing_id,
    standing_decisions.route,
    standing_decisions.group_id,
    standing_decisions.decision,
    standing_decisions.decided_by,
    standing_decisions.approved_by,
    standing_decisions.note,
    standing_decisions.until_at,
    standing_decisions.revoked_by,
    (
        select max(breakers.failed_at)
        from breakers
        where
            breakers.group_id = standing_decisions.group_id
            and (breakers.route = standing_decisions.route or standing_decisions.route is null)
            and breakers.failed_at >= standing_decisions.created_at
            and standing_decisions.decision = 'redeliver'
    ) as suspended_at,
    (
        select count(*)
        from escalated_messages
        where
            escalated_messages.group_id = standing_decisions.group_id
            and escalated_messages.note like 'standing decision ' || standing_decisions.standing_id || ':%'
    ) as messages
from standing_decisions
order by
    case
        when standing_decisions.revoked_at is null and standing_decisions.until_at > current_timestamp then 0 else 1
    end,
    standing_decisions.standing_id desc
