-- The gate of each group on each route: how many it allows at its stage, and of the attempts that count for that stage
-- how many were sent, stayed away and came back. What a consumer asked to have later did not come back, nor stay.
-- All that is read of an attempt is in the index of its stage. message_id is not, on PostgreSQL, which would then rather
-- read all attempts that there ever were.
create view group_state as
select
    breakers.route,
    breakers.group_id,
    breakers.stage,
    breakers.allowed,
    count(attempts.group_stage) as sent,
    count(case when attempts.outcome in ('presumed', 'confirmed') then 1 end) as stayed,
    count(case when attempts.outcome = 'returned' then 1 end) as returned,
    breakers.trips,
    breakers.cool_down_until,
    breakers.reason,
    breakers.stage_at,
    breakers.began_at
from breakers
left join redelivery_attempts as attempts
    on
        attempts.group_stage = breakers.stage_id
        and coalesce(attempts.return_kind, 'dead_letter') = 'dead_letter'
where breakers.group_id is not null
group by breakers.breaker_id
