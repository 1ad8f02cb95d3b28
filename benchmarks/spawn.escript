#!/usr/bin/env escript
%%! +S 2 +P 500000
%% The questions of spawn.py, asked of Erlang processes. Prints "wall_s cpu_s", then figures.
-mode(compile).

main([Function, Operations]) ->
    question(Function, list_to_integer(Operations)).

question("start", N) ->
    timed(fun() -> start(N) end);
question("start_stop", N) ->
    timed(fun() ->
        Monitors = [{Pid, monitor(process, Pid)} || Pid <- start(N)],
        [Pid ! stop || {Pid, _} <- Monitors],
        [receive {'DOWN', Monitor, _, _, _} -> ok end || {_, Monitor} <- Monitors]
    end);
question("idle", N) ->
    Before = erlang:memory(processes),
    Pids = timed(fun() -> start(N) end),
    After = erlang:memory(processes),
    io:format("bytes ~f~n", [(After - Before) / length(Pids)]).

%% Acknowledged one by one, as proc_lib:start does: an actor's start ends when it is ready.
start(N) ->
    Me = self(),
    [begin
         Pid = spawn(fun() -> Me ! {ready, self()}, idle() end),
         receive {ready, Pid} -> Pid end
     end || _ <- lists:seq(1, N)].

idle() -> receive stop -> ok end.

timed(Work) ->
    erlang:garbage_collect(),
    {Cpu0, _} = statistics(runtime),
    Wall0 = erlang:monotonic_time(nanosecond),
    Result = Work(),
    Wall = erlang:monotonic_time(nanosecond) - Wall0,
    {Cpu, _} = statistics(runtime),
    io:format("~f ~f~n", [Wall / 1.0e9, (Cpu - Cpu0) / 1.0e3]),
    Result.
